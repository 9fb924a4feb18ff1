// What accesses of warps cost a GPU: passes through shared memory's banks, sectors of the device's memory.
//
// Lanes run one after another here. What they do at one place of the code, for the nth time since their warp last met,
// is taken for one instruction: as on a GPU, unless lanes part ways between two of their meetings.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace simt {

class Traffic {
 public:
  enum class Kind : int { shared, global };
  static constexpr int kLanes = 32, kBanks = 32, kWord = 4, kSector = 32, kWidest = 16;

  // Of one place in a kernel: instructions, their passes or sectors, and the fewest that those bytes could take.
  struct Place {
    int64_t instructions, cost, least;
  };

  bool on = false;

  void clear() { warps_.clear(), places_.clear(); }
  void begin(const char* kernel) { kernel_ = kernel; }

  // What is aligned to fewer bytes than it has takes an instruction for each so many.
  void access(Kind kind, const void* code, int thread, int64_t at, int bytes, int alignment) {
    if (!on) return;
    if (thread / kLanes >= static_cast<int>(warps_.size())) warps_.resize(thread / kLanes + 1);
    const int width = std::min({bytes, alignment, kWidest});
    for (int part = 0; part < bytes; part += width) {
      Repeats& repeats = warps_[thread / kLanes][{kind, code, part}];
      const size_t nth = repeats.times[thread % kLanes]++;
      if (nth == repeats.instructions.size()) repeats.instructions.push_back({width, 0, {}});
      Instruction& one = repeats.instructions[nth];
      one.lanes |= 1u << thread % kLanes, one.begins[thread % kLanes] = at + part;
    }
  }

  // The lanes of a warp.
  void meet(int warp) {
    if (!on || warp >= static_cast<int>(warps_.size())) return;
    for (auto& [key, repeats] : warps_[warp]) {
      Place& place = places_[{kernel_, key.kind, key.code}];
      for (const Instruction& one : repeats.instructions) {
        ++place.instructions;
        key.kind == Kind::shared ? add_passes(one, place) : add_sectors(one, place);
      }
    }
    warps_[warp].clear();
  }

  // A line for each place: its kernel, kind and code, counted from `base` on, and what it took.
  std::string report(const void* base) const {
    std::string lines;
    for (const auto& [where, place] : places_) {
      const int64_t code = static_cast<const char*>(where.code) - static_cast<const char*>(base);
      lines += where.kernel + (where.kind == Kind::shared ? " shared" : " global");
      for (const int64_t number : {code, place.instructions, place.cost, place.least}) {
        lines += " " + std::to_string(number);
      }
      lines += "\n";
    }
    return lines;
  }

 private:
  struct Instruction {
    int bytes;       // of a lane
    uint32_t lanes;  // that take part
    int64_t begins[kLanes];
  };
  struct Key {
    Kind kind;
    const void* code;
    int part;
    bool operator<(const Key& other) const {
      return std::tie(kind, code, part) < std::tie(other.kind, other.code, other.part);
    }
  };
  struct Repeats {
    size_t times[kLanes] = {};
    std::vector<Instruction> instructions;
  };
  struct Where {
    std::string kernel;
    Kind kind;
    const void* code;
    bool operator<(const Where& other) const {
      return std::tie(kernel, kind, code) < std::tie(other.kernel, other.kind, other.code);
    }
  };

  // As many lanes come together as 32 words are for; of each bank a pass brings one word, to whoever wants it.
  static void add_passes(const Instruction& one, Place& place) {
    const int together = kBanks * kWord / std::max(one.bytes, kWord);
    for (int first = 0; first < kLanes; first += together) {
      std::set<int64_t> words;
      for (int lane = first; lane < first + together; ++lane) {
        if ((one.lanes >> lane & 1) == 0) continue;
        for (int64_t at = one.begins[lane]; at < one.begins[lane] + one.bytes; at += kWord) words.insert(at / kWord);
      }
      if (words.empty()) continue;
      int64_t of_bank[kBanks] = {}, most = 0;
      for (const int64_t word : words) most = std::max(most, ++of_bank[word % kBanks]);
      place.cost += most, ++place.least;
    }
  }

  static void add_sectors(const Instruction& one, Place& place) {
    std::set<int64_t> sectors, pairs;  // of bytes
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((one.lanes >> lane & 1) == 0) continue;
      for (int64_t at = one.begins[lane]; at < one.begins[lane] + one.bytes; at += 2) {
        sectors.insert(at / kSector), pairs.insert(at / 2);
      }
    }
    place.cost += sectors.size(), place.least += (2 * pairs.size() + kSector - 1) / kSector;
  }

  std::string kernel_;
  std::vector<std::map<Key, Repeats>> warps_;
  std::map<Where, Place> places_;
};

inline Traffic traffic;

}  // namespace simt

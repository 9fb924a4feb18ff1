#include "heterogeneous_attention/cpu.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(HeterogeneousKernels, heterogeneous_kernels)

namespace {

// Columns of a block; bytes of packed blocks, and of what is kept of a chunk's images.
constexpr int64_t kBlockWords = 192, kPackedBytes = int64_t{16} << 20, kKeptBytes = int64_t{24} << 20;

// Blocks of at most `most` words and `most_captions` captions, but of one caption at least.
std::vector<CaptionBlock> blocks_of(const FirstLayer& captions, int64_t most, int64_t most_captions) {
  std::vector<CaptionBlock> blocks;
  for (int64_t caption = 0; caption < captions.count; ++caption) {
    const int64_t words = captions.lengths[caption];
    if (blocks.empty() || blocks.back().words + words > most || blocks.back().count == most_captions) {
      blocks.push_back({caption, 0, 0, 0, nullptr});
    }
    CaptionBlock& block = blocks.back();
    ++block.count;
    block.words += words;
    block.longest = std::max(block.longest, words);
  }
  return blocks;
}

int64_t bytes_of(const std::function<void(Workspace&)>& count) {
  Workspace counted;
  count(counted);
  return round_up(counted.bytes(), 64);
}

double rows_of(const FirstLayer& side) {
  double rows = 0;
  for (int64_t item = 0; item < side.count; ++item) rows += static_cast<double>(side.lengths[item]);
  return rows;
}

// Multiply-adds of all images with `words` words: logits and values of both directions, and the matching.
double work_of(const HeterogeneousCall& call, double words) {
  return rows_of(call.images) * words * static_cast<double>(call.dim * (2 * call.heads + 4));
}

}  // namespace

void heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call) {
  const HeterogeneousKernels& run = heterogeneous_kernels_of(kernels);
  std::vector<CaptionBlock> blocks = blocks_of(call.captions, kBlockWords, call.captions.count);
  Memory packed, memory;
  for (size_t first = 0; first < blocks.size();) {
    std::vector<int64_t> places{0};
    double words = 0;
    int64_t scratch = 0;
    size_t end = first;
    for (; end < blocks.size(); ++end) {
      const CaptionBlock& block = blocks[end];
      const int64_t bytes = bytes_of([&](Workspace& counted) { run.pack(call, block, counted); });
      if (end > first && places.back() + bytes > kPackedBytes) break;
      places.push_back(places.back() + bytes);
      words += static_cast<double>(block.words);
      scratch = std::max(scratch, bytes_of([&](Workspace& counted) { run.forward_memory(call, block, counted); }));
    }
    char* const held = static_cast<char*>(packed.bytes(places.back()));
    CaptionBlock* const section = blocks.data() + first;
    const auto count = static_cast<int64_t>(end - first);
    parallel(count, words * static_cast<double>(call.dim * call.heads), 0, memory, [&](int64_t b, Workspace&) {
      section[b].memory = held + places[b];
      Workspace place(section[b].memory);
      run.pack(call, section[b], place);
    });
    parallel(count * call.images.count, work_of(call, words), scratch, memory, [&](int64_t task, Workspace& workspace) {
      run.forward(call, section[task / call.images.count], task % call.images.count, workspace);
    });
    first = end;
  }
}

void differentiate_heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call,
                                           const HeterogeneousGradients& gradients, float* norms) {
  const HeterogeneousKernels& run = heterogeneous_kernels_of(kernels);
  const int64_t images = call.images.count, both = 2 * call.dim;
  std::vector<double> totals(both, 0.0);
  std::vector<float> parts(kChunkImages * both);
  Memory packed, kept, memory;
  // Pairs without a gradient, most of them under a hardest-negative loss, cost nothing: where fewer than one in `few`
  // has one, blocks are single captions.
  constexpr int64_t few = 4;
  const int64_t pairs = images * call.captions.count;
  const auto none = std::count(gradients.scores, gradients.scores + pairs, 0.0f);
  const int64_t most_words = (pairs - none) * few < pairs ? 1 : kBlockWords;
  // Each caption of a block has its own gradients of an image's rows, which bounds the captions of a block.
  const int64_t bytes_of_rows = (call.local ? call.images.longest : 1) * call.dim * 4;
  const int64_t most_captions = std::max<int64_t>(kKeptBytes / 4 / std::max<int64_t>(bytes_of_rows, 1), 1);
  for (CaptionBlock& block : blocks_of(call.captions, most_words, most_captions)) {
    std::vector<int64_t> wanted;
    for (int64_t image = 0; image < images; ++image) {
      const float* const row = gradients.scores + image * call.captions.count + block.first;
      if (std::count(row, row + block.count, 0.0f) != block.count) wanted.push_back(image);
    }
    if (wanted.empty()) continue;
    block.memory = packed.bytes(bytes_of([&](Workspace& counted) { run.pack(call, block, counted); }));
    Workspace place(block.memory);
    run.pack(call, block, place);
    const int64_t scratch = bytes_of([&](Workspace& counted) { run.gradient_memory(call, block, counted); });
    const int64_t stride = bytes_of([&](Workspace& counted) { run.kept_memory(call, block, counted); });
    const int64_t most = std::min(std::max<int64_t>(kKeptBytes / stride, 1), kChunkImages);
    const int64_t of_caption = bytes_of([&](Workspace& counted) { run.caption_memory(call, block, most, counted); });
    const auto n_wanted = static_cast<int64_t>(wanted.size());
    for (int64_t first = 0; first < n_wanted; first += most) {
      const int64_t count = std::min(most, n_wanted - first);
      const ImageChunk chunk{wanted.data() + first, count, static_cast<char*>(kept.bytes(count * stride)), stride,
                             parts.data()};
      const double work = 3 * work_of(call, static_cast<double>(block.words)) * static_cast<double>(count) /
                          static_cast<double>(images);
      parallel(count, work, scratch, memory, [&](int64_t k, Workspace& workspace) {
        run.image_gradients(call, block, gradients, chunk, k, workspace);
      });
      parallel(block.count, work / 3, of_caption, memory, [&](int64_t k, Workspace& workspace) {
        run.caption_gradients(call, block, gradients, chunk, k, workspace);
      });
      for (int64_t k = 0; k < count; ++k) {
        for (int64_t i = 0; i < both; ++i) totals[i] += parts[k * both + i];
      }
    }
  }
  for (int64_t i = 0; i < both; ++i) norms[i] = static_cast<float>(totals[i]);
}

}  // namespace crossret

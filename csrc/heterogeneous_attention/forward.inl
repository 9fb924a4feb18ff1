// Scores of one image with a block of captions.
#pragma once
#include "heterogeneous_attention/layer.inl"
#include "heterogeneous_attention/matching.inl"

namespace crossret {
namespace CROSSRET_ISA {

struct HeterogeneousScratch {
  LayerScratch layer;
  float *words, *regions;            // unit rows
  float *word_pairs, *region_pairs;  // the same as pairs of bfloat16
  float *word_norms, *region_norms;  // 1 or 0
  MatchScratch match;

  HeterogeneousScratch(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory)
      : layer(call, block, memory, memory),
        words(memory.floats(layer.query_row * layered_row(call))),
        regions(memory.floats(kTogether * layer.n_queries * layered_row(call))),
        word_pairs(memory.floats((layer.query_row + Tiles::rows) * unit_pair_row(call))),
        region_pairs(memory.floats(read_rows(layer.n_queries) * unit_pair_row(call))),
        word_norms(memory.floats(layer.query_row + V::width)),
        region_norms(memory.floats(pad_columns(layer.n_queries))),
        match(call, false, memory) {}
};

static void count_forward(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory) {
  HeterogeneousScratch(call, block, memory);
}

static void heterogeneous_forward(const HeterogeneousCall& call, const CaptionBlock& block, int64_t image,
                                  Workspace& memory) {
  const Tiles configured;
  const PackedCaptions packed = packed_of(call, block);
  HeterogeneousScratch scratch(call, block, memory);
  const int64_t ld = packed.ld, n = call.local ? call.images.lengths[image] : 1;
  weigh_across(call, block, packed, image, scratch.layer);
  word_rows(call, packed, image, scratch.layer, scratch.words);
  unit_rows(call, scratch.words, packed.n_queries, ld, scratch.words, scratch.word_pairs, scratch.word_norms, nullptr);
  each_caption(call, block, [&](int64_t caption, int64_t key, int64_t query, int64_t queries) {
    float* const regions =
        region_rows(call, block, packed, image, caption - block.first, key, scratch.layer, scratch.regions);
    unit_rows(call, regions, n, ld, regions, scratch.region_pairs, scratch.region_norms, nullptr);
    call.scores[image * call.captions.count + caption] = matched_score(
        call, matched_rows(call, regions, scratch.region_pairs, scratch.region_norms, 0, n),
        matched_rows(call, scratch.words, scratch.word_pairs, scratch.word_norms, query, queries), scratch.match);
  });
}

}  // namespace CROSSRET_ISA
}  // namespace crossret

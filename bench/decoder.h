// Greedy decoding without an engine. A step decodes one token of every row.
#pragma once
#include <algorithm>

#include "bench/model.h"

namespace based::bench {

struct Decoder {
  LanguageModel& model;
  ModelState state;
  torch::Tensor slots, ids;

  Decoder(LanguageModel& decoded, int64_t rows)
      : model(decoded), state(decoded.make_state(rows)), slots(torch::arange(rows)), ids(random_ids(decoded, rows)) {}

  void prefill(int64_t tokens) {
    constexpr int64_t piece = 2048;
    for (int64_t done = 0; done < tokens; done += piece) {
      const int64_t length = std::min(piece, tokens - done), rows = slots.size(0);
      model.prefill_last(random_ids(model, rows * length), Sequences::equal(rows, length), state, slots);
    }
  }
  void step() { ids = model.logits(model.step(ids, state, slots)).narrow(1, 0, model.config().vocab_size).argmax(1); }
};

}  // namespace based::bench

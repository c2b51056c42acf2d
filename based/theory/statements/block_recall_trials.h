// Trials of block_recall, which the lower bounds by degree are held against.
#pragma once
#include <algorithm>
#include <numeric>

#include "based/theory/block_recall.h"
#include "based/theory/statement.h"

namespace based::theory {

// The answer is asked of the encoded rows: the sum of the values whose keys equal the query.
inline bool recalls(Trial& trial, const Program& program, const PHot& encoding, const std::vector<int64_t>& tokens) {
  const IntMatrix input = encoded(encoding, tokens);
  IntMatrix expected(program.outer);
  const int64_t query = input.size.rows - 1;
  for (int64_t key = 0; key + 1 < query; key += 2) {
    if (!std::equal(input.row(key), input.row(key) + input.size.columns, input.row(query))) continue;
    for (int64_t j = 0; j < input.size.columns; ++j) expected.at(query, j) += input.at(key + 1, j);
  }
  return trial.compare(program, input, expected, program.tuple());
}

// All inputs with one and with two keys where there are at most 2^16 of them; random inputs beyond and with up to `most_keys`.
inline void try_recall(Trial& trial, const PHot& encoding, int64_t most_keys, const std::string& claimed) {
  Random random(5, static_cast<uint64_t>(encoding.tokens() * 1000 + encoding.blocks));
  for (int64_t keys = 1; keys <= most_keys; ++keys) {
    const Program program = block_recall(encoding, keys);
    trial.layers(program.depth(), claimed);
    std::vector<int64_t> tokens(static_cast<size_t>(2 * keys + 1));
    int64_t inputs = 1;
    for (size_t i = 0; i < tokens.size() && inputs <= 1 << 12; ++i) inputs *= encoding.tokens();
    const bool all = inputs <= 1 << 12;
    for (int64_t input = 0; input < (all ? inputs : 200); ++input) {
      int64_t rest = input;
      for (int64_t& token : tokens) {
        token = all ? rest % encoding.tokens() : static_cast<int64_t>(random.below(static_cast<uint64_t>(encoding.tokens())));
        rest /= encoding.tokens();
      }
      if (!all && input % 2 == 0) tokens.back() = tokens[static_cast<size_t>(2 * random.between(0, keys - 1))];
      if (!recalls(trial, program, encoding, tokens)) return;
    }
  }
}

}  // namespace based::theory

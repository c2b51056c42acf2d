// Trials of block_recall, which is compared with the lower bounds by degree.
#pragma once
#include <algorithm>
#include <functional>

#include "theory/block_recall.h"
#include "theory/recall.h"
#include "theory/statement.h"

namespace based::theory {

// Compares the program with the definition on encoded rows: the sum of the values whose keys equal the query.
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

// Compares the program with the definition of MQAR for all queries.
inline bool recalls_all(Trial& trial, const Program& program, const PHot& encoding, const std::vector<int64_t>& tokens) {
  RecallInstance instance{encoding.width(), {}, {}, {}};
  for (size_t at = 0; at < tokens.size(); ++at)
    (at % 3 == 0 ? instance.keys : at % 3 == 1 ? instance.values : instance.queries).push_back(encoding.encode(tokens[at]));
  IntMatrix expected(program.outer);
  for (int64_t i = 0; 3 * i < expected.size.rows; ++i)
    std::ranges::copy(recall(instance, i, Reach::before, Matches::sum), expected.row(3 * i + 2));
  return trial.compare(program, encoded(encoding, tokens), expected, program.tuple());
}

using TryTokens = std::function<bool(const std::vector<int64_t>&)>;

// Tries all inputs of `length` tokens if there are at most 4096, otherwise 200 random ones. In half of these the last token is a key: the
// token of a random one of the first `key_rows` key rows.
inline bool try_tokens(const PHot& encoding, int64_t length, int64_t key_rows, const TryTokens& holds) {
  constexpr int64_t kMost = 4096, kDrawn = 200;
  Random random(5, static_cast<uint64_t>(encoding.tokens() * 1000 + encoding.blocks));
  std::vector<int64_t> tokens(static_cast<size_t>(length));
  int64_t inputs = 1;
  for (size_t i = 0; i < tokens.size() && inputs <= kMost; ++i) inputs *= encoding.tokens();
  const bool all = inputs <= kMost;
  for (int64_t input = 0; input < (all ? inputs : kDrawn); ++input) {
    int64_t rest = input;
    for (int64_t& token : tokens) {
      token = all ? rest % encoding.tokens() : random.between(0, encoding.tokens() - 1);
      rest /= encoding.tokens();
    }
    if (!all && input % 2 == 0) tokens.back() = tokens[static_cast<size_t>(key_rows * random.between(0, (length - 2) / key_rows))];
    if (!holds(tokens)) return false;
  }
  return true;
}

// Tries one query after up to `most` keys, and MQAR with up to `most` tuples.
inline void try_recall(Trial& trial, const PHot& encoding, int64_t most, const std::string& claimed) {
  for (int64_t keys = 1; keys <= most; ++keys) {
    const Program one = block_recall(encoding, keys), all = block_mqar(encoding, keys);
    trial.layers(one.depth(), claimed);
    trial.layers(all.depth(), claimed);
    if (!try_tokens(encoding, 2 * keys + 1, 2, [&](const auto& tokens) { return recalls(trial, one, encoding, tokens); })) return;
    if (!try_tokens(encoding, 3 * keys, 3, [&](const auto& tokens) { return recalls_all(trial, all, encoding, tokens); })) return;
  }
}

}  // namespace based::theory

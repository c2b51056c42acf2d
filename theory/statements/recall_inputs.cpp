#include "theory/statements/recall_inputs.h"

#include <algorithm>

namespace based::theory {

std::vector<int64_t> Tokens::answers() const {
  std::vector<int64_t> found(queries.size(), -1);
  for (size_t i = 0; i < queries.size(); ++i)
    for (size_t j = 0; j <= i; ++j)
      if (keys[j] == queries[i]) found[i] = values[j];
  return found;
}

bool Tokens::one_match() const {
  for (size_t i = 0; i < queries.size(); ++i)
    if (std::count(keys.begin(), keys.begin() + static_cast<int64_t>(i) + 1, queries[i]) > 1) return false;
  return true;
}

IntMatrix Tokens::one_hot(int64_t tokens) const {
  const auto n = static_cast<int64_t>(queries.size());
  IntMatrix input({3 * n, tokens});
  int64_t row = 0;
  for (const auto* part : {&queries, &keys, &values})
    for (const int64_t token : *part) input.at(row++, token) = 1;
  return input;
}

Tokens draw_tokens(Random& random, const RecallSizes& sizes, int64_t kind) {
  const auto n = static_cast<size_t>(sizes.length);
  const auto d = static_cast<uint64_t>(sizes.tokens);
  const auto token = [&] { return static_cast<int64_t>(random.below(d)); };
  Tokens tokens;
  // The keys cycle through a permutation, so that a key is repeated only after all others. Kind 6 repeats a few keys.
  const int64_t start = token();
  const int64_t few = std::max<int64_t>(1, sizes.tokens / 4);
  std::vector<int64_t> order;
  for (uint64_t t = 0; t < d; ++t) order.push_back((start + static_cast<int64_t>(t)) % sizes.tokens);
  for (size_t k = order.size(); k > 1 && kind != 1; --k) std::swap(order[k - 1], order[random.below(k)]);
  for (size_t i = 0; i < n; ++i)
    tokens.keys.push_back(kind == 6 && random.below(2) == 0 ? order[random.below(static_cast<uint64_t>(few))] : order[i % d]);
  if (kind == 0 && random.below(2) == 0) std::generate(tokens.keys.begin(), tokens.keys.end(), token);
  // One token occurs at most once as a key, so that every row has a valid query.
  const int64_t rare = token();
  bool came = false;
  for (int64_t& key : tokens.keys) {
    if (key != rare) continue;
    if (came) key = (rare + 1) % sizes.tokens;
    came = true;
  }
  for (size_t i = 0; i < n; ++i) tokens.values.push_back(kind == 7 ? sizes.tokens - 1 : token());

  std::vector<int64_t> times(d, 0);  // the number of occurrences of each key so far
  const int64_t same = token();
  for (size_t i = 0; i < n; ++i) {
    ++times[static_cast<size_t>(tokens.keys[i])];
    int64_t wanted = token();
    if (kind == 1) wanted = tokens.keys[i];
    if (kind == 2) wanted = tokens.keys[0];
    if (kind == 3) wanted = tokens.keys[std::min(n - 1, i + 1)];
    if (kind == 4) wanted = tokens.keys[random.below(n)];
    if (kind == 5) wanted = same;
    // No query may match two keys up to its row: use the next token that does not.
    while (times[static_cast<size_t>(wanted)] > 1) wanted = (wanted + 1) % sizes.tokens;
    tokens.queries.push_back(wanted);
  }
  return tokens;
}

void for_all_tokens(const RecallSizes& sizes, const std::function<void(const Tokens&)>& seen) {
  const auto n = static_cast<size_t>(sizes.length);
  Tokens tokens{std::vector<int64_t>(n), std::vector<int64_t>(n), std::vector<int64_t>(n)};
  while (true) {
    seen(tokens);
    size_t at = 0;
    for (; at < 3 * n; ++at) {
      auto& part = at < n ? tokens.values : at < 2 * n ? tokens.queries : tokens.keys;
      if (++part[at % n] < sizes.tokens) break;
      part[at % n] = 0;
    }
    if (at == 3 * n) return;
  }
}

RecallCheck::RecallCheck(Trial& trial, const RecallSizes& sizes, const Program& program)
    : trial_(&trial),
      sizes_(sizes),
      tuple_(program.tuple()),
      traced_(program, {sizes.length, sizes.tokens}),
      inputs_(static_cast<size_t>(traced_.inputs())) {}

void RecallCheck::add(const Tokens& tokens) {
  batch_.push_back(tokens);
  if (batch_.size() == kLanes) finish();
}

void RecallCheck::finish() {
  if (batch_.empty()) return;
  const auto n = static_cast<size_t>(sizes_.length), d = static_cast<size_t>(sizes_.tokens);
  for (Lanes& cell : inputs_) cell.fill(0);
  for (size_t lane = 0; lane < batch_.size(); ++lane) {
    size_t row = 0;
    for (const auto* part : {&batch_[lane].queries, &batch_[lane].keys, &batch_[lane].values})
      for (const int64_t token : *part) inputs_[row++ * d + static_cast<size_t>(token)][lane] = 1;
  }
  traced_.run(inputs_, outputs_);
  trial_->count(static_cast<int64_t>(batch_.size()));
  for (size_t lane = 0; lane < batch_.size(); ++lane) {
    const std::vector<int64_t> answers = batch_[lane].answers();
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < d; ++j)
        if (outputs_[i * d + j][lane] != (answers[i] == static_cast<int64_t>(j) ? 1 : 0)) {
          trial_->require(false, tuple_ + ": a query of row " + std::to_string(i + 1) + " is answered wrongly");
          i = n - 1;
          break;
        }
  }
  batch_.clear();
}

}  // namespace based::theory

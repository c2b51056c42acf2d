#include "based/serve/constraints/constraint.h"

#include <algorithm>
#include <utility>

namespace based {
namespace {

constexpr size_t kMaskBytes = size_t{4} << 20U, kMaxChoices = 1024, kMaxChoiceBytes = size_t{16} << 10U;

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer),
      vocab_size_(tokenizer.vocab_size()),
      end_of_text_(tokenizer.end_of_text().value_or(-1)),
      in_text_(static_cast<size_t>(vocab_size_)) {
  tokens_.reserve(static_cast<size_t>(vocab_size_));
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (id == end_of_text_ || tokenizer.is_special(id) || token_bytes(id).empty()) continue;
    in_text_[static_cast<size_t>(id)] = true;
    tokens_.push_back({.id = id});
  }
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [this](const Token& a, const Token& b) { return token_bytes(a.id) < token_bytes(b.id); });
  std::string_view before;
  for (Token& token : tokens_) {
    const std::string_view bytes = token_bytes(token.id);
    const auto common = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    token.shared = static_cast<uint32_t>(common.second - bytes.begin());
    token.size = static_cast<uint32_t>(bytes.size());
    token.rest = static_cast<uint32_t>(rests_.size());
    rests_ += bytes.substr(token.shared);
    longest_ = std::max(longest_, bytes.size());
    before = bytes;
  }
}

void TokenTrie::mark(const ByteAutomaton& automaton, int32_t state, std::span<uint64_t> mask) const {
  std::vector<int32_t> states(longest_ + 1);  // the automaton's state after each number of bytes of the current token
  states[0] = state;
  size_t alive = longest_;  // further bytes of the last token were not accepted
  for (const Token& token : tokens_) {
    if (token.shared > alive) continue;  // shares the byte that was not accepted
    size_t depth = token.shared;
    int32_t current = states[depth];
    const auto* byte = reinterpret_cast<const uint8_t*>(rests_.data() + token.rest);
    for (; depth < token.size; ++byte) {
      current = automaton.next(current, *byte);
      if (current == ByteAutomaton::kDead) break;
      states[++depth] = current;
    }
    alive = depth < token.size ? depth : longest_;
    if (alive == longest_) mask[static_cast<size_t>(token.id) / 64] |= uint64_t{1} << static_cast<size_t>(token.id) % 64;
  }
}

std::shared_ptr<Constraint> Constraint::from_choices(std::shared_ptr<const TokenTrie> trie, std::span<const std::string> choices,
                                                     const std::string& field) {
  if (choices.empty()) throw UsageError(field + ": the list of choices is empty");
  if (choices.size() > kMaxChoices)
    throw UsageError(field + ": " + std::to_string(choices.size()) + " choices; at most " + std::to_string(kMaxChoices) + " are allowed");
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) throw UsageError(field + ": a choice is empty");
    bytes += choice.size();
  }
  if (bytes > kMaxChoiceBytes)
    throw UsageError(field + ": choices of " + std::to_string(bytes) + " bytes; at most " + std::to_string(kMaxChoiceBytes) +
                     " are allowed");
  return std::shared_ptr<Constraint>(new Constraint(std::move(trie), compile_choices(choices)));
}

std::shared_ptr<Constraint> Constraint::from_regex(std::shared_ptr<const TokenTrie> trie, std::string_view pattern,
                                                   const std::string& field) {
  return std::shared_ptr<Constraint>(new Constraint(std::move(trie), compile_regex(pattern, field)));
}

std::span<const uint64_t> Constraint::mask(int32_t state) {
  const auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  const size_t words = (static_cast<size_t>(trie_->vocab_size()) + 63) / 64;
  if ((masks_.size() + 1) * words * sizeof(uint64_t) > kMaskBytes) masks_.clear();
  std::vector<uint64_t> mask(words);
  trie_->mark(automaton_, state, mask);
  const int32_t end = trie_->end_of_text();
  if (end >= 0 && automaton_.accepting(state)) mask[static_cast<size_t>(end) / 64] |= uint64_t{1} << static_cast<size_t>(end) % 64;
  return masks_.emplace(state, std::move(mask)).first->second;
}

bool ConstrainedSequence::advance(int32_t id) {
  const TokenTrie& trie = constraint_->trie();
  if (id < 0 || id >= trie.vocab_size()) return false;
  if (id == trie.end_of_text()) return accepting();
  if (!trie.allowed_in_text(id)) return false;
  int32_t state = state_;
  for (const char byte : trie.token_bytes(id)) {
    state = constraint_->automaton().next(state, static_cast<uint8_t>(byte));
    if (state == ByteAutomaton::kDead) return false;
  }
  state_ = state;
  return true;
}

}  // namespace based

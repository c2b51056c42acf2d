// Generation that is restricted to a list of choices or to a regular expression. The expression becomes a deterministic automaton over
// bytes. A state's mask holds the tokens whose bytes the automaton accepts from that state; each accepted byte leaves a way to a match. The
// end-of-text token is allowed in accepting states only.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "based/core/error.h"
#include "based/data/tokenizer.h"
#include "based/serve/constraints/byte_automaton.h"

namespace based {

// The byte strings of a vocabulary's tokens as a trie: sorted, each without the prefix that it shares with the one before. Immutable; one
// serves all constraints of a model.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);

  int64_t vocab_size() const { return vocab_size_; }
  int32_t end_of_text() const { return end_of_text_; }  // -1: the tokenizer has none
  std::string_view token_bytes(int32_t id) const { return tokenizer_->token_bytes(id); }
  bool allowed_in_text(int32_t id) const { return in_text_[static_cast<size_t>(id)]; }  // not special, and not empty

  // Sets the bit of each token that the automaton accepts from `state`. `mask` has (vocab_size + 63) / 64 zero words.
  void mark(const ByteAutomaton& automaton, int32_t state, std::span<uint64_t> mask) const;

 private:
  struct Token {
    int32_t id = 0;
    uint32_t shared = 0;  // leading bytes that are those of the token before
    uint32_t size = 0;
    uint32_t rest = 0;  // where the bytes after the shared ones are in rests_
  };

  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
  int32_t end_of_text_ = -1;
  std::vector<Token> tokens_;  // in the order of their bytes
  std::string rests_;
  std::vector<bool> in_text_;
  size_t longest_ = 0;
};

// A compiled constraint and the masks of its states. May be shared by sequences of one thread.
class Constraint {
 public:
  // The text must be one of `choices`: at most 1,024 that are not empty, of 16 KiB together. Throws UsageError, which names `field`.
  static std::shared_ptr<Constraint> from_choices(std::shared_ptr<const TokenTrie> trie, std::span<const std::string> choices,
                                                  const std::string& field);
  // The whole text must match `pattern`; see parse_regex for the syntax and the limits. Throws UsageError, which names `field`.
  static std::shared_ptr<Constraint> from_regex(std::shared_ptr<const TokenTrie> trie, std::string_view pattern, const std::string& field);

  const ByteAutomaton& automaton() const { return automaton_; }
  const TokenTrie& trie() const { return *trie_; }

  // The allowed ids of a state, one bit an id, in (vocab_size + 63) / 64 words. Valid until the next call.
  std::span<const uint64_t> mask(int32_t state);

 private:
  Constraint(std::shared_ptr<const TokenTrie> trie, ByteAutomaton automaton) : trie_(std::move(trie)), automaton_(std::move(automaton)) {}

  std::shared_ptr<const TokenTrie> trie_;
  ByteAutomaton automaton_;
  std::unordered_map<int32_t, std::vector<uint64_t>> masks_;  // 4 MiB at most; emptied when full
};

// One sequence's place in a constraint.
class ConstrainedSequence {
 public:
  explicit ConstrainedSequence(std::shared_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {}

  // The ids that may follow. No bit is set if the text is complete and the tokenizer has no end-of-text token, or if the vocabulary has no
  // token for any byte that may follow: the generation ends there.
  std::span<const uint64_t> mask() { return constraint_->mask(state_); }
  bool accepting() const { return constraint_->automaton().accepting(state_); }  // whether the text so far matches
  // Whether the text matches and cannot be extended.
  bool complete() const { return constraint_->automaton().complete(state_); }
  // Follows a token. Returns false, and stays where it is, if the token is not allowed. The end-of-text token changes nothing.
  bool advance(int32_t id);

 private:
  std::shared_ptr<Constraint> constraint_;
  int32_t state_ = 0;
};

}  // namespace based

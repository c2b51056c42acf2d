// A step of several consecutive tokens of a sequence (Pass::step_rounds). A mixer's projections read their weights once for all tokens.
// Its recurrences run round by round, each with the operator of a step of one token, or for all tokens of one sequence with an operator
// that has the same bits.
#pragma once
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "based/mixers/kit/mixer.h"
#include "based/ops/sampling/accept_drafts.h"

namespace based {

// The states of the sequences after each of their tokens but the last one, so that a sequence can return to one of them. It copies the
// slots' rows of each tensor that a round has written. Tensors that grow are not copied: a step rewrites the time steps after its position.
// A journal that is used again for steps of the same slots writes its copies to the same memory, as a recorded step needs.
class StateJournal {
 public:
  // `most_tokens`: the most tokens of a step of one sequence. The memory of memory_for() then does not depend on a step's number of tokens.
  explicit StateJournal(int64_t most_tokens = 1) : most_tokens_(most_tokens) {}
  // `states` are tensors [slots, …] that round number `round` of `pass` has written.
  void keep(const std::vector<Tensor>& states, const Pass& pass, size_t round);
  // Memory [tokens − 1 or more, …] for each of the states of a step of one sequence, to be filled with its state after each token but the
  // last.
  std::vector<Tensor> memory_for(const std::vector<Tensor>& states, int64_t tokens);
  // Sets slot `slot` to its state after the first `tokens` of its tokens, at least 1 and fewer than all. `sequence`: the index of the
  // sequence, which is its row in each round.
  void restore(int64_t sequence, int64_t slot, int64_t tokens) const;
  // After a step of one sequence: its states in slot `slot`, with their values after 1 to tokens − 1 tokens.
  std::vector<ops::AcceptedValue> values_of_sequence(int64_t slot, int64_t tokens) const;

 private:
  struct Kept {
    Tensor state;   // the tensor itself, written in place by later rounds
    Tensor copies;  // [sequences that have a later token, …]; in memory_: [tokens − 1 or more, …] of one sequence
  };
  // The memory of a state of one sequence, [tokens − 1 or more, …].
  Tensor rows_for(const Tensor& state, int64_t tokens);

  int64_t most_tokens_;
  std::map<std::pair<const void*, size_t>, Kept> kept_;  // by the tensor's memory and the round
  std::map<const void*, Kept> memory_;                   // from rows_for(), by the address of the state
};

// A step of several tokens of one sequence, for operators that read them all: its slot, int64 [1]; the number of tokens, which are the
// first rows of the pass; StateJournal::memory_for() of its states, without rows where nothing is kept.
struct TokensOfSequence {
  Slots slot;
  int64_t tokens = 0;
  std::vector<Tensor> kept;
};
// None for passes of several sequences, or without rounds.
std::optional<TokensOfSequence> tokens_of_sequence(const Pass& pass, const std::vector<Tensor>& states);

// The rows of one round. A tensor that is not defined stays so. On a GPU the order of a row's sum may depend on the alignment of its begin,
// so the rows of a tensor whose begins are aligned in different ways are copied.
Tensor rows_of(const Tensor& rows, const Pass::Round& round);
inline std::optional<Tensor> rows_of(const std::optional<Tensor>& rows, const Pass::Round& round) {
  return rows ? std::optional(rows_of(*rows, round)) : rows;
}

// The results of all rounds, followed by rows for Pass::padding(), which repeat the last one.
Tensor join_rounds(std::vector<Tensor> outputs, const Pass& pass);

// Returns step(pass, inputs…) [rows, …]; in a pass of several rounds, the concatenation of one call for each round with its rows. `step`
// runs a recurrence for one token of each slot and updates `states`, tensors [slots, …], in place.
template <class Step, class... Inputs>
Tensor step_in_rounds(const Pass& pass, const std::vector<Tensor>& states, const Step& step, const Inputs&... inputs) {
  if (pass.rounds().empty()) return step(pass, inputs...);
  std::vector<Tensor> outputs;
  outputs.reserve(pass.rounds().size());
  for (size_t i = 0; i < pass.rounds().size(); ++i) {
    const Pass::Round& round = pass.rounds()[i];
    outputs.push_back(step(*round.pass, rows_of(inputs, round)...));
    if (pass.journal() != nullptr) pass.journal()->keep(states, pass, i);
  }
  return join_rounds(std::move(outputs), pass);
}

// The same where an operator reads all tokens of a sequence with the bits of step_in_rounds: a pass of one sequence becomes
// read_tokens(TokensOfSequence, inputs…), which returns a result for every row of the pass.
template <class Step, class ReadTokens, class... Inputs>
Tensor step_tokens(const Pass& pass, const std::vector<Tensor>& states, const Step& step, const ReadTokens& read_tokens,
                   const Inputs&... inputs) {
  if (const auto tokens = tokens_of_sequence(pass, states)) return read_tokens(*tokens, inputs...);
  return step_in_rounds(pass, states, step, inputs...);
}

// Mixer::step for any mixer and pass. A mixer that does not run rounds itself (Mixer::steps_in_rounds) is called once for each round.
Tensor step_any(Mixer& mixer, const Tensor& x, MixerState& state, const Pass& pass);

}  // namespace based

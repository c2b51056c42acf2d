// Reading sequences in cells (generate/cells.h).
#include <algorithm>
#include <utility>

#include "based/generate/engine.h"

namespace based {

// Tokens that the parallel form is to read, of a sequence at a cell's begin: those of whole cells. The last token is a step's.
int64_t Engine::to_read(const Sequence& sequence) const {
  const int64_t unread = sequence.unread();
  return cell_ > 0 ? unread / cell_ * cell_ : unread;
}

// How many of `budget` tokens may be read at once, at least a cell.
int64_t Engine::most_to_read(int64_t budget) const { return cell_ > 0 ? std::max<int64_t>(1, budget / cell_) * cell_ : budget; }

// Called when the parallel form has read all whole cells: steps continue from the slot's state.
void Engine::begin_cell(Sequence& sequence) {
  begins_->keep(sequence.slot);
  sequence.begin = sequence.seen;
  sequence.steps_through = true;
  if (sequence.options.scores) score_tail(sequence);
}

// Scores of the tokens in its cell that are known, by the parallel form from the cell's begin; steps give none. They are made again when
// the cell has more tokens.
void Engine::score_tail(Sequence& sequence) {
  const int64_t stepped = std::exchange(sequence.seen, sequence.begin);
  if (sequence.unread() > 0) {
    ModelState copy = model_.make_state(1);
    copy.insert(begins_->extract(sequence.slot, sequence.begin), 0);
    read_piece(copy, {0}, {&sequence}, sequence.unread());
  }
  sequence.seen = stepped;
}

// Called when a sequence in the stepping phase receives more tokens. False: steps read them. True: it waits again, with the state at its
// cell's begin, since the tokens make the cell whole, or since the cache has no room for them yet.
bool Engine::goes_back(Sequence& sequence) {
  const torch::InferenceMode inference;
  const auto tokens = static_cast<int64_t>(sequence.text.size());
  const bool room = !pages_ || tokens <= sequence.reserved || reserve(sequence, std::min(tokens, pages_->max_tokens()));
  if (room && tokens - 1 - sequence.begin < cell_) {
    sequence.steps_through = true;
    if (sequence.options.scores) score_tail(sequence);
    return false;
  }
  begins_->restore(sequence.slot);
  sequence.seen = sequence.begin;
  return true;
}

// Steps have read the last token of the sequence's cell.
void Engine::complete_cell(Sequence& sequence) {
  if (cell_ == 0 || sequence.seen != sequence.begin + cell_) return;
  begins_->restore(sequence.slot);
  sequence.seen = sequence.begin;
  read_piece(state_, {sequence.slot}, {&sequence}, cell_);
  begins_->keep(sequence.slot);
  sequence.begin = sequence.seen;
}

// Sets the input tokens of the next step for those of these slots whose token was given rather than drawn by the step before.
void Engine::give_tokens(const std::vector<int64_t>& slots) {
  std::vector<int64_t> given_to, given;
  std::vector<Sequence*> draw;
  for (const int64_t slot : slots) {
    Sequence& sequence = sequences_.at(owner_[static_cast<size_t>(slot)]);
    if (!sequence.steps_through) continue;
    const int64_t next = sequence.seen + sequence.in_flight;
    sequence.steps_through = next + 1 < static_cast<int64_t>(sequence.text.size());
    if (sequence.steps_through)
      given_to.push_back(slot), given.push_back(sequence.text[static_cast<size_t>(next)]);
    else
      draw.push_back(&sequence);
  }
  if (!given.empty()) decode_->set_tokens(given_to, given);
  begin_drawing(draw);
}

// A sequence's state as it is given away.
ModelState Engine::state_of(const Sequence& sequence) {
  if (cell_ == 0 || sequence.reads) return extract(sequence.slot, sequence.seen);
  const torch::InferenceMode inference;
  return begins_->extract(sequence.slot, sequence.begin);
}

}  // namespace based

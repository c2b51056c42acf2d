// Steps of several tokens of a sequence (DecodeStep::run_drafts).
#include <algorithm>
#include <numeric>
#include <utility>

#include "based/generate/decode_step.h"
#include "based/ops/linear/linear.h"

namespace based {

DecodeStep::Readback DecodeStep::read_back() {
  begin_readback();
  return finish_readback();
}

// Appends the token of a slot, of which `from` then has no list of likely tokens any more.
void DecodeStep::append(Readback& from, int64_t slot, DrawnTokens& drawn) {
  drawn.tokens.push_back(from.tokens[slot]);
  if (from.log_probabilities != nullptr) drawn.log_probabilities.push_back(from.log_probabilities[slot]);
  if (const auto top = from.top.find(slot); top != from.top.end()) drawn.top.push_back(std::move(top->second));
}

namespace {

// Whether no token is drawn after the last one of `drawn`.
bool is_last(const DecodeStep::DrawnTokens& drawn, const DecodeStep::DraftedSlot& slot) {
  const int64_t token = drawn.tokens.back();
  const bool stops = std::find(slot.stop_tokens.begin(), slot.stop_tokens.end(), token) != slot.stop_tokens.end();
  return stops || drawn.tokens.size() > slot.drafts.size() || token != slot.drafts[drawn.tokens.size() - 1];
}

}  // namespace

std::vector<DecodeStep::DrawnTokens> DecodeStep::run_drafts(const std::vector<DraftedSlot>& slots) {
  if (sequence_step_ != nullptr) return {run_drafts_of_sequence(slots.at(0))};
  BASED_ASSERT(model_.device().is_cpu() && !steps_all());
  std::vector<DrawnTokens> drawn(slots.size());
  if (std::all_of(slots.begin(), slots.end(), [](const DraftedSlot& slot) { return slot.drafts.empty(); })) {
    std::vector<int64_t> plain;
    for (const DraftedSlot& slot : slots) plain.push_back(slot.slot);
    run(plain);
    Readback got = read_back();
    for (size_t i = 0; i < slots.size(); ++i) append(got, slots[i].slot, drawn[i]);
    return drawn;
  }
  roll_backs_.clear();
  std::vector<size_t> together;
  int64_t rows = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t more = 1 + static_cast<int64_t>(slots[i].drafts.size());
    BASED_ASSERT(more <= 1 + kMostDraftTokens);
    if (rows + more > ops::kBatchInvariantRows) {
      run_drafts_together(slots, std::exchange(together, {}), drawn);
      rows = 0;
    }
    together.push_back(i);
    rows += more;
  }
  if (!together.empty()) run_drafts_together(slots, std::move(together), drawn);
  return drawn;
}

// One call of the model for the slots number `together`, whose tokens have at most ops::kBatchInvariantRows rows.
void DecodeStep::run_drafts_together(const std::vector<DraftedSlot>& slots, std::vector<size_t> together, std::vector<DrawnTokens>& drawn) {
  std::stable_sort(together.begin(), together.end(), [&](size_t a, size_t b) { return slots[a].drafts.size() > slots[b].drafts.size(); });
  const auto *const input = token_.const_data_ptr<int64_t>(), *const seen = state_.position().const_data_ptr<int64_t>();
  std::vector<int64_t> ids, row_slots, round_rows, before;
  for (const size_t i : together) before.push_back(seen[slots[i].slot]);
  for (size_t round = 0; round <= slots[together[0]].drafts.size(); ++round) {
    round_rows.push_back(0);
    for (const size_t i : together) {
      if (slots[i].drafts.size() < round) break;
      ids.push_back(round == 0 ? input[slots[i].slot] : slots[i].drafts[round - 1]);
      row_slots.push_back(slots[i].slot);
      ++round_rows.back();
    }
  }
  const auto journal = std::make_shared<StateJournal>();
  const Tensor padded = model_.logits(model_.step_rounds(on_device(ids), state_, on_device(row_slots), round_rows, journal.get()));
  std::vector<size_t> active(together.size());  // indices in `together`, which are the rows of round 0
  std::iota(active.begin(), active.end(), 0);
  for (int64_t round = 0, begin = 0; !active.empty(); begin += round_rows[static_cast<size_t>(round++)]) {
    std::vector<int64_t> round_slots, rows, positions;
    for (const size_t row : active) {
      round_slots.push_back(slots[together[row]].slot);
      rows.push_back(begin + static_cast<int64_t>(row));
      positions.push_back(before[row] + round + 1);
    }
    draw_round(round_slots, padded.index_select(0, on_device(rows)), on_device(positions));
    Readback got = read_back();
    std::erase_if(active, [&](size_t row) {
      const DraftedSlot& slot = slots[together[row]];
      DrawnTokens& of_slot = drawn[together[row]];
      append(got, slot.slot, of_slot);
      return is_last(of_slot, slot);
    });
  }
  for (size_t row = 0; row < together.size(); ++row) {
    const DraftedSlot& slot = slots[together[row]];
    const auto kept = static_cast<int64_t>(drawn[together[row]].tokens.size());
    roll_backs_[slot.slot] = {journal, static_cast<int64_t>(row), 1 + static_cast<int64_t>(slot.drafts.size())};
    roll_back(slot.slot, kept);
  }
}

// Draws one token for each of these slots, as run() does from the logits of a step.
void DecodeStep::draw_round(const std::vector<int64_t>& slots, const Tensor& padded, const Tensor& position) {
  const Rows adjusted = rows_where(slots, [&](int64_t slot) { return adjustments_.adjusts(slot); });
  const Tensor seen = adjusted.slots.empty() ? Tensor() : options_.seen.index_select(0, on_device(adjusted.slots));
  const Slots index = on_device(slots);
  ops::SampleOptions options = options_of(index);
  options.position = position;
  const Tensor token = torch::empty_like(index);
  const Tensor log_probability = log_probability_.defined() ? log_probability_.index_select(0, index) : Tensor();
  draw(padded, token, options, log_probability);
  store(index, token, options.seen, log_probability);
  logits_ = {padded};
  if (!adjusted.slots.empty()) draw_adjusted(adjusted, seen, position.index_select(0, on_device(adjusted.rows)));
  find_top(rows_where(slots, [&](int64_t slot) { return top_counts_[static_cast<size_t>(slot)] > 0; }));
  logits_.clear();
}

// --- steps with a fixed number of rows

// The slot's next input token, its marks and its log-probability become those that the last step of `sequence_step_` has drawn from this
// row.
void DecodeStep::take_row(int64_t row) {
  sequence_step_->take(row);
  logits_ = {sequence_step_->logits(row)};
}

// As take_row(), for a slot with adjusted logits or a list of likely tokens. `seen`: its marks after the redraw of the rows before this
// one.
void DecodeStep::redraw_row(int64_t row, const Tensor& seen) {
  const Rows rows{{0}, {0}};
  take_row(row);
  if (adjustments_.adjusts(0)) draw_adjusted(rows, seen, sequence_step_->position(row));
  if (top_counts_[0] > 0) find_top(rows);
  logits_.clear();
}

DecodeStep::DrawnTokens DecodeStep::run_drafts_of_sequence(const DraftedSlot& slot) {
  BASED_ASSERT(slot.slot == 0);
  DrawnTokens drawn;
  top_.reset();
  const bool redraws = adjustments_.adjusts(0) || top_counts_[0] > 0;
  Tensor seen = redraws ? options_.seen.clone() : Tensor();
  sequence_step_->run(slot.drafts);
  int64_t read = sequence_step_->tokens_read();  // by the state
  if (redraws) {
    for (int64_t row = 0; row == 0 || !is_last(drawn, slot); ++row) {
      redraw_row(row, seen);
      seen = options_.seen.clone();
      Readback got = read_back();
      append(got, slot.slot, drawn);
    }
  } else {
    const SequenceStep::Drawn all = sequence_step_->accept_drafts();
    read = 1 + all.accepted;
    for (int64_t row = 0; row == 0 || !is_last(drawn, slot); ++row) {
      drawn.tokens.push_back(all.tokens[row]);
      if (all.log_probabilities != nullptr) drawn.log_probabilities.push_back(all.log_probabilities[row]);
    }
    if (const auto last = static_cast<int64_t>(drawn.tokens.size()) - 1; last < all.accepted) sequence_step_->take(last);  // it stops there
  }
  roll_backs_[slot.slot] = {sequence_step_->journal(), 0, read};
  roll_back(slot.slot, static_cast<int64_t>(drawn.tokens.size()));
  return drawn;
}

void DecodeStep::roll_back(int64_t slot, int64_t tokens) {
  RollBack& last = roll_backs_.at(slot);
  BASED_ASSERT(tokens >= 1 && tokens <= last.tokens);
  if (tokens < last.tokens) last.journal->restore(last.sequence, slot, tokens);
  last.tokens = tokens;
}

}  // namespace based

#include "based/generate/prompt_reader.h"

#include <algorithm>
#include <utility>

#include "based/core/error.h"

namespace based {

PromptReader::PromptReader(SequenceTable& table, const PromptReaderOptions& options)
    : table_(table), options_(options), isolate_prompts_(options.cell > 0) {}

void PromptReader::remove(int64_t id) {
  std::erase(waiting_, id);
  if (id == staged_id_) staged_id_ = -1;
}

int64_t PromptReader::to_read(const SequenceTable::Sequence& sequence) const {
  const int64_t unread = sequence.unread();
  return options_.cell > 0 ? unread / options_.cell * options_.cell : unread;
}

// Tokens of one prompt that may be read with this budget: with cells at least one cell.
int64_t PromptReader::most_to_read(int64_t budget) const {
  return options_.cell > 0 ? std::max<int64_t>(1, budget / options_.cell) * options_.cell : budget;
}

bool PromptReader::defers_round() {
  if (options_.max_idle_slot_steps == 0 || table_.decoding_count() == 0 || staged_id_ >= 0) return false;
  const int64_t idle = std::min(table_.free_slots(), static_cast<int64_t>(waiting_.size()));
  idle_slot_steps_ += idle;
  deferred_steps_ += idle > 0 ? 1 : 0;
  const bool waited_long = options_.max_deferred_steps > 0 && deferred_steps_ > options_.max_deferred_steps;
  if (!waited_long && idle_slot_steps_ < options_.max_idle_slot_steps * table_.slots()) return true;
  idle_slot_steps_ = deferred_steps_ = 0;
  return false;
}

void PromptReader::read_staged(Piece::Target target, int64_t most_tokens, const Read& read) {
  read({{staged_id_}, most_tokens, target});
  if (to_read(table_.at(staged_id_)) == 0) staged_id_ = -1;
}

// The position in the queue of the prompt that is read next with this budget. It then has a slot. A prompt that is cut into pieces begins
// with a whole budget, so that its pieces are as long as possible.
std::optional<size_t> PromptReader::next(int64_t budget, int64_t whole_budget) {
  const int64_t most = most_to_read(budget);
  for (size_t at = 0; at < waiting_.size(); ++at) {
    const bool whole = to_read(table_.at(waiting_[at])) <= most;
    if (!whole && staged_id_ >= 0) continue;  // it waits for the staging state; shorter prompts need not
    if (!whole && !isolate_prompts_ && budget < whole_budget) return {};
    if (table_.assign_slot(waiting_[at])) return at;
    break;
  }
  // No slot, or not enough space, is free: prompts of which a part has been read continue.
  for (size_t at = 0; at < waiting_.size(); ++at) {
    const SequenceTable::Sequence& sequence = table_.at(waiting_[at]);
    const bool cut_well = budget == whole_budget || isolate_prompts_ || to_read(sequence) <= most;
    if (sequence.slot >= 0 && cut_well && table_.assign_slot(waiting_[at])) return at;
  }
  return {};
}

bool PromptReader::read_round(const Read& read) {
  const int64_t whole_budget = most_to_read(options_.prefill_tokens);
  int64_t budget = whole_budget;
  const auto is_short = [&](int64_t id) { return to_read(table_.at(id)) <= whole_budget; };
  const auto continue_staged = [&] {
    budget -= std::min(to_read(table_.at(staged_id_)), whole_budget);
    others_turn_ = true;
    read_staged(Piece::Target::staging_state, whole_budget, read);
  };
  const bool others = staged_id_ >= 0 && std::exchange(others_turn_, false) && std::any_of(waiting_.begin(), waiting_.end(), is_short);
  if (staged_id_ >= 0 && !others) continue_staged();
  std::vector<int64_t> together;
  while (budget > 0) {
    const std::optional<size_t> at = next(budget, whole_budget);
    if (!at) break;
    const int64_t id = waiting_[*at], most = most_to_read(budget), left = to_read(table_.at(id));
    const bool whole = left <= most;
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(*at));
    budget -= std::min(left, most);
    if (!whole && options_.stages_long_prompts) {
      BASED_ASSERT(staged_id_ < 0);
      staged_id_ = id;
      others_turn_ = true;
      read_staged(Piece::Target::new_staging_state, most, read);
      continue;
    }
    if (!whole) waiting_.push_back(id);  // the others have a turn before its next piece
    together.push_back(id);
    if (!isolate_prompts_ && whole) continue;
    read({together, most});
    together.clear();
  }
  if (!together.empty()) read({together, whole_budget});
  if (others && budget == whole_budget) continue_staged();  // the others have no slots or nothing to read
  return budget < whole_budget;
}

}  // namespace based

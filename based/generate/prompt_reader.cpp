#include "based/generate/prompt_reader.h"

#include <algorithm>

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
  idle_slot_steps_ += std::min(table_.free_slots(), static_cast<int64_t>(waiting_.size()));
  if (idle_slot_steps_ < options_.max_idle_slot_steps * table_.slots()) return true;
  idle_slot_steps_ = 0;
  return false;
}

void PromptReader::read_staged(Piece::Target target, int64_t most_tokens, const Read& read) {
  read({{staged_id_}, most_tokens, target});
  if (to_read(table_.at(staged_id_)) == 0) staged_id_ = -1;
}

bool PromptReader::read_round(const Read& read) {
  const int64_t whole_budget = most_to_read(options_.prefill_tokens);
  int64_t budget = whole_budget;
  if (staged_id_ >= 0) {
    budget -= std::min(to_read(table_.at(staged_id_)), whole_budget);
    read_staged(Piece::Target::staging_state, whole_budget, read);
  }
  std::vector<int64_t> together;
  while (!waiting_.empty() && budget > 0) {
    const int64_t id = waiting_.front(), most = most_to_read(budget), left = to_read(table_.at(id));
    const bool whole = left <= most, staged = !whole && options_.stages_long_prompts;
    // A prompt that is cut into pieces begins with a whole budget, so that its pieces are as long as possible.
    if (!whole && !isolate_prompts_ && budget < whole_budget) break;
    if (!table_.assign_slot(id)) break;
    budget -= std::min(left, most);
    if (staged) {
      BASED_ASSERT(staged_id_ < 0);  // a staged prompt uses up the budget until its last piece
      waiting_.pop_front();
      staged_id_ = id;
      read_staged(Piece::Target::new_staging_state, most, read);
      continue;
    }
    if (whole) waiting_.pop_front();
    together.push_back(id);
    if (!isolate_prompts_ && whole) continue;
    read({together, most});
    together.clear();
  }
  if (!together.empty()) read({together, whole_budget});
  return budget < whole_budget;
}

}  // namespace based

#include "based/generate/prefill.h"

#include <algorithm>
#include <utility>

#include "based/ops/sampling/top_tokens.h"
#include "based/runtime/profile.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

constexpr int64_t kTopChunkLogitBytes = int64_t{64} << 20;

}  // namespace

Prefill::Prefill(LanguageModel& model, SequenceTable& table, const PromptReader& reader, ModelState& state, DecodeStep& decode,
                 std::optional<CellBegins> begins, bool padded_columns)
    : model_(model),
      table_(table),
      reader_(reader),
      state_(state),
      decode_(decode),
      begins_(std::move(begins)),
      cell_(reader.cell()),
      padded_columns_(padded_columns) {}

Tensor Prefill::on_device(const std::vector<int64_t>& values) const {
  return runtime::to_device(torch::tensor(values, torch::kInt64), model_.device());
}

void Prefill::warm_up(int64_t prefill_tokens) {
  std::vector<int64_t> slots, starts{0};
  const int64_t tokens = std::max<int64_t>(1, prefill_tokens / table_.slots());
  for (int64_t slot = 0; slot < table_.slots(); ++slot) {
    slots.push_back(slot);
    starts.push_back(starts.back() + tokens);
    if (slot > 0 && slot + 1 < table_.slots()) continue;
    const Tensor ids = torch::zeros({starts.back()}, torch::dtype(torch::kInt64).device(model_.device()));
    model_.prefill_last(ids, Sequences::packed(starts, starts.back(), model_.device()), state_, on_device(slots));
  }
  state_.zero(on_device(slots));
}

// --- reading

void Prefill::read(const PromptReader::Piece& piece) {
  if (piece.target == PromptReader::Piece::Target::slots) return read_together(piece.ids, piece.most_tokens);
  const int64_t id = piece.ids.at(0);
  if (piece.target == PromptReader::Piece::Target::new_staging_state) {
    Sequence& sequence = table_.at(id);
    staging_ = model_.make_state(1);
    if (sequence.state) staging_.insert(*sequence.state, 0);
    sequence.state.reset();
  }
  read_staged(id, piece.most_tokens);
}

void Prefill::read_together(const std::vector<int64_t>& ids, int64_t most_tokens) {
  std::vector<Sequence*> sequences;
  std::vector<int64_t> slots;
  for (const int64_t id : ids) sequences.push_back(&table_.at(id)), slots.push_back(sequences.back()->slot);
  table_.upload_pages();
  put_into_slots(sequences);
  read_pieces(state_, slots, sequences, most_tokens);
  begin_decoding(sequences);
}

// After the last piece, the staging state is moved to the sequence's slot.
void Prefill::read_staged(int64_t id, int64_t most_tokens) {
  Sequence& sequence = table_.at(id);
  read_pieces(staging_, {0}, {&sequence}, most_tokens);
  if (reader_.to_read(sequence) > 0) return;
  table_.upload_pages();
  staging_.trim(sequence.seen);
  insert(staging_, sequence.slot);
  staging_ = {};
  begin_decoding({&sequence});
}

// Zeroes the slots of new sequences, and fills those of restored ones.
void Prefill::put_into_slots(const std::vector<Sequence*>& sequences) {
  std::vector<int64_t> fresh;
  for (const Sequence* one : sequences)
    if (one->seen == 0) fresh.push_back(one->slot);
  if (!fresh.empty()) state_.zero(on_device(fresh)), decode_.forget_pending(fresh);
  std::vector<const ModelState*> states;
  std::vector<int64_t> slots;
  for (const Sequence* one : sequences)
    if (one->state) states.push_back(&*one->state), slots.push_back(one->slot);
  if (states.empty()) return;
  state_.insert(states, slots);
  decode_.forget_pending(slots);
  for (Sequence* one : sequences) one->state.reset();
}

// read_piece(), or with cells one call of it for each cell of the only sequence.
void Prefill::read_pieces(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences,
                          int64_t most_tokens) {
  if (cell_ == 0) return read_piece(state, slots, sequences, most_tokens);
  BASED_ASSERT(sequences.size() == 1);
  for (int64_t left = std::min(reader_.to_read(*sequences[0]), most_tokens); left >= cell_; left -= cell_)
    read_piece(state, slots, sequences, cell_);
}

// Reads up to `most_tokens` more tokens of each sequence into its slot of `state`, by one call of the parallel form.
void Prefill::read_piece(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences,
                         int64_t most_tokens) {
  std::vector<int64_t> ids, starts{0}, read_slots, counts;
  bool scores = false;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& one = *sequences[i];
    counts.push_back(std::min(one.unread(), most_tokens));
    if (counts.back() == 0) continue;
    ids.insert(ids.end(), one.tokens.begin() + one.seen, one.tokens.begin() + one.seen + counts.back());
    starts.push_back(static_cast<int64_t>(ids.size()));
    read_slots.push_back(slots[i]);
    scores = scores || (one.options.scores && one.seen + counts.back() >= one.options.first_scored);
  }
  if (read_slots.empty()) return;
  const auto tokens = static_cast<int64_t>(ids.size()), count = static_cast<int64_t>(read_slots.size());
  const runtime::DeviceRange range(ProfileLevel::phases, "prefill", model_.device(), {{"tokens", tokens}, {"sequences", count}});
  tokens_read_ += tokens;
  const Sequences rows = Sequences::packed(starts, static_cast<int64_t>(ids.size()), model_.device());
  const Tensor ids_on_device = on_device(ids), slots_on_device = on_device(read_slots);
  if (scores) {
    keep_scores(model_.prefill(ids_on_device, rows, state, slots_on_device), sequences, counts);
  } else {
    model_.prefill_last(ids_on_device, rows, state, slots_on_device);
  }
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i]->seen += counts[i];
}

// Stores the log-probability of the token after each token of the piece, for sequences that keep scores. hidden: [sum of tokens, d_model];
// tokens[i]: how many tokens of sequence i the piece has.
void Prefill::keep_scores(const Tensor& hidden, const std::vector<Sequence*>& sequences, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> rows, targets, counts(sequences.size());
  bool greedy = false;
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); row += tokens[i++]) {
    const Sequence& one = *sequences[i];
    if (!one.options.scores) continue;
    greedy = greedy || one.options.greedy;
    for (int64_t t = std::max<int64_t>(0, one.options.first_scored - one.seen - 1); t < tokens[i]; ++t, ++counts[i]) {
      rows.push_back(row + t);
      targets.push_back(one.tokens[static_cast<size_t>(one.seen + t + 1)]);
    }
  }
  if (rows.empty()) return;
  const bool all = static_cast<int64_t>(rows.size()) == hidden.size(0);
  const Tensor chosen = all ? hidden : hidden.index_select(0, on_device(rows)), wanted = on_device(targets);
  const Tensor scores = model_.token_log_probabilities(chosen, wanted, padded_columns_).to(torch::kCPU, torch::kFloat);
  Tensor hits = greedy ? model_.most_likely(chosen, padded_columns_).eq(wanted).to(torch::kCPU, torch::kByte) : Tensor();
  const float* score = scores.const_data_ptr<float>();
  const uint8_t* hit = greedy ? hits.const_data_ptr<uint8_t>() : nullptr;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& one = *sequences[i];
    if (!one.options.scores) continue;
    drop_unfinished_scores(one);
    one.scores.insert(one.scores.end(), score, score + counts[i]);
    const int64_t first = score - scores.const_data_ptr<float>();
    if (one.options.top_log_probabilities > 0)
      keep_top_scores(one, chosen.narrow(0, first, counts[i]), wanted.narrow(0, first, counts[i]), score);
    if (one.options.greedy) one.greedy.insert(one.greedy.end(), hit, hit + counts[i]);
    score += counts[i];
    if (greedy) hit += counts[i];
  }
}

// Stores the most likely tokens in place of some scored tokens of a sequence. hidden [n, d_model]; tokens, int64 [n]: the scored ones;
// scores [n]: theirs, on the host. Only the logits of a chunk of rows are in memory.
void Prefill::keep_top_scores(Sequence& sequence, const Tensor& hidden, const Tensor& tokens, const float* scores) {
  const ModelConfig& config = model_.config();
  const int64_t k = std::min(sequence.options.top_log_probabilities, config.vocab_size), rows = hidden.size(0);
  const int64_t chunk = std::max<int64_t>(kTopChunkLogitBytes / (config.padded_vocab() * hidden.element_size()), 1);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t size = std::min(chunk, rows - begin);
    const Tensor logits = model_.logits(hidden.narrow(0, begin, size));
    const auto [top, differences] =
        ops::top_tokens(logits.narrow(1, 0, padded_columns_ ? config.padded_vocab() : config.vocab_size), tokens.narrow(0, begin, size), k);
    const Tensor ids = top.to(torch::kCPU), margins = differences.to(torch::kCPU, torch::kFloat);
    const auto* id = ids.const_data_ptr<int64_t>();
    const auto* margin = margins.const_data_ptr<float>();
    for (int64_t i = 0; i < size * k; ++i) sequence.top_scores.push_back({id[i], scores[begin + i / k] + margin[i]});
  }
}

// With cells, drops the scores of the sequence's unfinished cell, which is read again.
void Prefill::drop_unfinished_scores(Sequence& sequence) const {
  if (cell_ == 0) return;
  const int64_t first = std::max(sequence.options.first_scored, sequence.first_read + 1);
  const auto finished = static_cast<size_t>(std::max<int64_t>(0, sequence.seen + 1 - first));
  sequence.scores.resize(finished);
  sequence.top_scores.resize(finished * static_cast<size_t>(std::min(sequence.options.top_log_probabilities, model_.config().vocab_size)));
  if (sequence.options.greedy) sequence.greedy.resize(finished);
}

// --- from prefill to steps

// Sequences whose prompts have been read begin to decode; the others stay in the prefill.
void Prefill::begin_decoding(const std::vector<Sequence*>& sequences) {
  std::vector<Sequence*> sampling;
  for (Sequence* one : sequences) {
    if (reader_.to_read(*one) > 0) continue;
    table_.begin_decoding(*one);
    if (cell_ == 0) {
      if (one->options.max_tokens != 0) sampling.push_back(one);  // otherwise it ends without a step
      continue;
    }
    begins_->keep(one->slot);
    one->cell_begin = one->seen;
    one->needs_input_token = true;
    if (one->options.scores) score_tail(*one);
  }
  load_last_tokens(sampling);
}

// The next step reads the last token of each of these sequences and samples by their options.
void Prefill::load_last_tokens(const std::vector<Sequence*>& sequences) {
  std::vector<int64_t> slots;
  std::vector<SamplingOptions> sampling;
  std::vector<const std::vector<int64_t>*> tokens;
  for (const Sequence* one : sequences)
    slots.push_back(one->slot), sampling.push_back(one->options.sampling), tokens.push_back(&one->tokens);
  if (slots.empty()) return;
  decode_.set_sampling(slots, sampling);
  decode_.load_last_tokens(slots, tokens);
  for (const Sequence* one : sequences) decode_.set_adjustments(one->slot, one->options, one->generated());
}

ModelState Prefill::extract(int64_t slot, int64_t tokens) {
  const torch::InferenceMode inference;
  decode_.flush({slot});
  ModelState one = state_.extract(slot);
  one.trim(tokens);
  return one;
}

void Prefill::insert(const ModelState& one, int64_t slot) {
  state_.insert(one, slot);
  decode_.forget_pending({slot});
}

ModelState Prefill::snapshot(const Sequence& sequence) {
  if (cell_ == 0 || sequence.is_prefilling) return extract(sequence.slot, sequence.seen);
  const torch::InferenceMode inference;
  return begins_->extract(sequence.slot, sequence.cell_begin);
}

void Prefill::keep_snapshots(const std::vector<Sequence*>& sequences) {
  BASED_ASSERT(cell_ == 0);
  const torch::InferenceMode inference;
  std::vector<int64_t> slots;
  for (const Sequence* one : sequences) slots.push_back(one->slot);
  decode_.flush(slots);
  std::vector<ModelState> states = state_.extract(slots);
  for (size_t i = 0; i < sequences.size(); ++i) {
    states[i].trim(sequences[i]->seen);
    sequences[i]->state = std::move(states[i]);
  }
}

// --- cells

// Scores the known tokens of the sequence's cell by the parallel form from the cell's begin, because steps give no scores. They are
// computed again when the cell has more tokens.
void Prefill::score_tail(Sequence& sequence) {
  const int64_t stepped = std::exchange(sequence.seen, sequence.cell_begin);
  if (sequence.unread() > 0) {
    ModelState copy = model_.make_state(1);
    copy.insert(begins_->extract(sequence.slot, sequence.cell_begin), 0);
    read_piece(copy, {0}, {&sequence}, sequence.unread());
  }
  sequence.seen = stepped;
}

bool Prefill::restores_cell_begin(Sequence& sequence) {
  const torch::InferenceMode inference;
  const auto tokens = static_cast<int64_t>(sequence.tokens.size());
  const PagePool* const pages = table_.pages();
  const bool has_room =
      pages == nullptr || tokens <= sequence.reserved_tokens || table_.reserve(sequence, std::min(tokens, pages->max_tokens()));
  if (has_room && tokens - 1 - sequence.cell_begin < cell_) {
    sequence.needs_input_token = true;
    if (sequence.options.scores) score_tail(sequence);
    return false;
  }
  begins_->restore(sequence.slot);
  sequence.seen = sequence.cell_begin;
  return true;
}

void Prefill::complete_cell(Sequence& sequence) {
  if (cell_ == 0 || sequence.seen != sequence.cell_begin + cell_) return;
  begins_->restore(sequence.slot);
  sequence.seen = sequence.cell_begin;
  read_piece(state_, {sequence.slot}, {&sequence}, cell_);
  begins_->keep(sequence.slot);
  sequence.cell_begin = sequence.seen;
}

void Prefill::load_input_tokens(const std::vector<int64_t>& slots) {
  std::vector<int64_t> given_slots, given_tokens;
  std::vector<Sequence*> sampling;
  for (const int64_t slot : slots) {
    Sequence& sequence = table_.at(table_.owner(slot));
    if (!sequence.needs_input_token) continue;
    const int64_t next = sequence.seen + sequence.steps_in_flight;
    sequence.needs_input_token = next + 1 < static_cast<int64_t>(sequence.tokens.size());
    if (sequence.needs_input_token)
      given_slots.push_back(slot), given_tokens.push_back(sequence.tokens[static_cast<size_t>(next)]);
    else
      sampling.push_back(&sequence);
  }
  if (!given_slots.empty()) decode_.set_tokens(given_slots, given_tokens);
  load_last_tokens(sampling);
}

}  // namespace based

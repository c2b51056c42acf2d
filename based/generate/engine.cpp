#include "based/generate/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/models/tensor_view.h"
#include "based/ops/linear/linear.h"
#include "based/runtime/profile.h"
#include "based/runtime/transfer.h"

namespace based {

// A CPU is fastest on activations that fit into its caches.
int64_t default_prefill_tokens(torch::Device device) { return device.is_cuda() ? 8192 : 1024; }

namespace {

void check_drafts(const EngineOptions& options, torch::Device device) {
  if (!options.drafts.drafter) return;
  if (options.drafts.most < 0 || options.drafts.most > kMostDraftTokens)
    throw UsageError("a draft has 0 to " + std::to_string(kMostDraftTokens) + " tokens, got " + std::to_string(options.drafts.most));
  if (device.is_cpu() && options.slots > ops::kBatchInvariantRows && !options.decode.invariant)
    throw UsageError("drafts need at most " + std::to_string(ops::kBatchInvariantRows) +
                     " slots, or invariant steps: with more slots the bits of a token depend on how many tokens a step reads; got " +
                     std::to_string(options.slots) + " slots");
}

// A GPU verifies drafts by steps of a fixed number of rows.
bool has_fixed_rows(const EngineOptions& options, torch::Device device) {
  return options.decode.fixed_rows || (options.drafts.drafter && !device.is_cpu());
}

DecodeOptions decode_options(const EngineOptions& options, torch::Device device) {
  DecodeOptions decode = options.decode;
  decode.padded_columns = options.padded_columns;
  decode.fixed_rows = has_fixed_rows(options, device);
  decode.one_row_steps = decode.fixed_rows && options.drafts.drafter && options.drafts.by_repetition && !decode.invariant;
  if (decode.fixed_rows && options.slots > 1)
    throw UsageError("on a GPU a step with drafts reads one sequence: the engine needs one slot, got " + std::to_string(options.slots));
  return decode;
}

void prepare_weights(LanguageModel& model, const EngineOptions& options) {
  if (!needs_full_weights(options, model.device())) return;
  if (const int64_t bytes = model.use_full_weights(); bytes > 0)
    log_info("decoding: the quantised weights are also kept in " + float_type_name(model.dtype()) +
             ", which steps of several rows read: " + format_bytes(static_cast<double>(bytes)) + " more");
}

}  // namespace

bool needs_full_weights(const EngineOptions& options, torch::Device device) {
  if (device.is_cpu()) return false;
  return has_fixed_rows(options, device) || DecodeStep::width(options.slots, options.decode, device) > 1;
}

Engine::Engine(LanguageModel& model, const EngineOptions& options)
    : model_(model), ahead_(options.ahead), joint_states_(options.joint_states && !options.decode.invariant) {
  if (options.slots < 1) throw UsageError("an engine needs at least one slot, got " + std::to_string(options.slots));
  if (options.cache_tokens < 0 || options.prefill_tokens < 0) throw UsageError("an engine's numbers of tokens must not be negative");
  const torch::InferenceMode inference;
  const torch::Device device = model.device();
  check_drafts(options, device);
  DecodeOptions decode = decode_options(options, device);
  const int64_t width = DecodeStep::width(options.slots, decode, device);
  prepare_weights(model, options);
  state_ = model.make_state(width);
  std::optional<PagePool> pages;
  if (state_.grows() && options.cache_tokens > 0) {
    pages.emplace(width, options.cache_tokens, device);
    state_.use_pages(pages->pages(), pages->size());
  } else if (state_.grows()) {
    if (decode.invariant && !device.is_cpu())
      throw UsageError("an engine's invariant steps on a GPU need cache_tokens where the state grows");
    decode.steps = Steps::plain;
  }
  std::optional<CellBegins> begins;
  if (decode.invariant) begins.emplace(state_);
  table_ = std::make_unique<SequenceTable>(model.config(), options.slots, std::move(pages));
  decode_ = std::make_unique<DecodeStep>(model, state_, decode);
  const PromptReaderOptions reading{options.prefill_tokens > 0 ? options.prefill_tokens : default_prefill_tokens(device),
                                    decode.invariant ? cell_tokens(device.type()) : 0, options.max_idle_slot_steps,
                                    options.max_deferred_steps, decode_->steps_all()};
  reader_ = std::make_unique<PromptReader>(*table_, reading);
  if (options.drafts.drafter) {
    DraftOptions drafts = options.drafts;
    drafts.by_repetition = decode.one_row_steps;
    drafting_ = std::make_unique<Drafting>(std::move(drafts));
  }
  prefill_ = std::make_unique<Prefill>(model, *table_, *reader_, state_, *decode_, std::move(begins), options.padded_columns);
  if (decode_->steps_all() && slots() > 1 && table_->pages() == nullptr) prefill_->warm_up(reading.prefill_tokens);
}

int64_t Engine::state_bytes() const {
  const PagePool* const pages = table_->pages();
  return state_.bytes() + pending_bytes() + begins_bytes() + (pages != nullptr ? static_cast<int64_t>(pages->pages().table.nbytes()) : 0);
}

// --- adding and removing sequences

int64_t Engine::add(std::vector<int64_t> tokens, const SequenceOptions& options) {
  Sequence sequence;
  sequence.options = options;
  sequence.tokens = std::move(tokens);
  const int64_t id = table_->add(std::move(sequence));
  reader_->push_back(id);
  return id;
}

int64_t Engine::add(SequenceState saved, const SequenceOptions& options) {
  const int64_t cell = reader_->cell();
  Sequence sequence;
  sequence.options = options;
  sequence.tokens = std::move(saved.ids);
  sequence.seen = saved.seen();
  if (sequence.seen < 0 || sequence.unread() < 0)
    throw Error("a state that has seen " + std::to_string(sequence.seen) + " tokens, where its text has " +
                std::to_string(sequence.tokens.size()));
  if (cell > 0 && saved.cells != cells()) sequence.seen = 0;
  if (cell > 0 && sequence.seen % cell != 0)
    throw Error("a state that has seen " + std::to_string(sequence.seen) + " tokens, which is not at the begin of a cell of " +
                std::to_string(cell));
  sequence.first_read = sequence.seen;
  if (sequence.seen > 0) sequence.state = std::move(saved.state);
  const int64_t id = table_->add(std::move(sequence));
  reader_->push_back(id);
  return id;
}

void Engine::extend(int64_t id, const std::vector<int64_t>& more) {
  collect_all();
  Sequence& sequence = table_->require(id);
  if (sequence.finish != Finish::none) throw Error("engine: sequence " + std::to_string(id) + " has ended");
  table_->append(sequence, more);
  if (sequence.is_prefilling || more.empty()) return;
  if (reader_->cell() > 0 && !prefill_->restores_cell_begin(sequence)) return;
  table_->return_to_prefill(sequence);
  reader_->push_front(id);
  if (!decode_->steps_all()) return;
  sequence.state = prefill_->extract(sequence.slot, sequence.seen);  // steps of other sequences would change the slot
  table_->release_slot(sequence);
}

void Engine::set_sampling(int64_t id, const SamplingOptions& sampling) {
  table_->check_sampling(sampling);
  Sequence& sequence = table_->require(id);
  if (sequence.options.sampling == sampling) return;
  collect_all();
  sequence.options.sampling = sampling;
  const torch::InferenceMode inference;
  if (sequence.slot < 0) return;
  decode_->set_sampling({sequence.slot}, {sampling});
  decode_->set_adjustments(sequence.slot, sequence.options, sequence.generated());
}

void Engine::end(int64_t id, int64_t unwanted) {
  if (table_->require(id).options.keep_state) collect_all();
  Sequence& sequence = table_->require(id);
  if (unwanted > 0) take_back(id, sequence, unwanted);
  finish_sequence(id, sequence, Finish::stop);
}

// The slot of a sequence that has ended keeps its state until another sequence gets it, which cannot be before the next step.
void Engine::take_back(int64_t id, Sequence& sequence, int64_t unwanted) {
  const torch::InferenceMode inference;
  const Drafted& last = drafted_.at(id);
  const int64_t tokens = sequence.finish == Finish::not_finite ? unwanted - 1 : unwanted;  // that output has no token
  sequence.tokens.resize(sequence.tokens.size() - static_cast<size_t>(tokens));
  sequence.sampled -= tokens;
  sequence.seen = static_cast<int64_t>(sequence.tokens.size()) - 1;
  decode_->roll_back(last.slot, sequence.seen - last.seen);
  if (sequence.finish == Finish::none) return;
  sequence.finish = Finish::stop;
  if (!sequence.options.keep_state) return;
  sequence.slot = last.slot;
  sequence.state = prefill_->snapshot(sequence);
  sequence.slot = -1;
}

void Engine::remove(int64_t id) {
  Sequence& sequence = table_->require(id);
  sequence.options.keep_state = false;
  finish_sequence(id, sequence, Finish::stop);
  table_->erase(id);
}

void Engine::finish_sequence(int64_t id, Sequence& sequence, Finish reason) {
  if (sequence.finish != Finish::none) return;
  const bool keeps_state = sequence.options.keep_state && reason != Finish::not_finite;
  if (!keeps_state) {
    sequence.state.reset();
  } else if (sequence.slot >= 0 && !sequence.state) {
    sequence.state = id == reader_->staged_id() ? prefill_->staged_snapshot() : prefill_->snapshot(sequence);
  }
  if (sequence.is_prefilling) reader_->remove(id);
  if (drafting_) drafting_->forget(id);
  table_->finish(sequence, reason);
}

SequenceState Engine::snapshot(int64_t id) {
  collect_all();
  Sequence& sequence = table_->require(id);
  const torch::InferenceMode inference;
  if (id == reader_->staged_id()) return {sequence.tokens, prefill_->staged_snapshot(), cells()};
  if (sequence.slot >= 0) return {sequence.tokens, prefill_->snapshot(sequence), cells()};
  if (sequence.state) return {sequence.tokens, sequence.state->extract(0), cells()};
  if (sequence.finish != Finish::none) throw Error("engine: sequence " + std::to_string(id) + " has ended, and its state was not kept");
  return {sequence.tokens, model_.make_state(1), cells()};
}

SequenceState Engine::take_state(int64_t id) {
  Sequence& sequence = table_->require(id);
  if (sequence.finish == Finish::none || !sequence.state)
    throw Error("engine: sequence " + std::to_string(id) + " has no state that was kept after its end");
  SequenceState taken{sequence.tokens, std::move(*sequence.state), cells()};
  sequence.state.reset();
  return taken;
}

std::span<const TokenProbability> Engine::top_scores(int64_t id, size_t index) const {
  const Sequence& sequence = table_->at(id);
  const auto each = static_cast<size_t>(std::min(sequence.options.top_log_probabilities, model_.config().vocab_size));
  return std::span(sequence.top_scores).subspan(index * each, each);
}

// --- prompts

bool Engine::read_prompts() {
  return reader_->read_round([this](const PromptReader::Piece& piece) { prefill_->read(piece); });
}

void Engine::read(const std::function<void()>& after_each) {
  const torch::InferenceMode inference;
  while (read_prompts())
    if (after_each) after_each();
}

// --- steps

// Loads SequenceOptions::allowed for the next step, if it samples. Returns false if no token may follow.
bool Engine::restrict_next_token(Sequence& sequence) {
  if (!sequence.options.allowed || sequence.unread() > 0) return true;
  const std::span<const uint64_t> allowed = sequence.options.allowed(sequence.generated());
  BASED_ASSERT(static_cast<int64_t>(allowed.size()) == (model_.config().vocab_size + 63) / 64);
  return decode_->allow(sequence.slot, allowed);
}

// For EngineOptions::joint_states: copies the states of all sequences that end in this step.
void Engine::keep_final_states() {
  std::vector<Sequence*> ended;
  for (int64_t slot = 0; slot < table_->slots(); ++slot) {
    const int64_t id = table_->owner(slot);
    if (id < 0) continue;
    Sequence& one = table_->at(id);
    const bool ends = !one.is_prefilling && one.steps_in_flight == 0 && one.sampled == one.options.max_tokens;
    if (ends && one.options.keep_state) ended.push_back(&one);
  }
  if (ended.size() > 1) prefill_->keep_snapshots(ended);
}

// The slots, in ascending order, whose sequences can read another token after those in flight. Sequences that have reached a limit end
// here. Returns no slots at all if the tokens in flight must be collected first: they may end a sequence that keeps its state, which
// another step would change, they may decide which tokens may follow, or they may complete a cell, which the parallel form then reads.
std::vector<int64_t> Engine::slots_to_step() {
  const int64_t cell = reader_->cell();
  PagePool* const pages = table_->pages();
  if (joint_states_) keep_final_states();
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < table_->slots(); ++slot) {
    const int64_t id = table_->owner(slot);
    if (id < 0) continue;
    Sequence& sequence = table_->at(id);
    if (sequence.is_prefilling) continue;
    const bool in_flight = sequence.steps_in_flight > 0;
    const bool last = sequence.sampled + sequence.samples_in_flight() == sequence.options.max_tokens;
    const int64_t after = sequence.seen + sequence.steps_in_flight + 1;  // tokens seen after the step
    const bool leaves_cell = cell > 0 && after > sequence.cell_begin + cell;
    // A step of all slots would also change the state of a sequence that ends by its limit.
    const bool state_may_be_final =
        sequence.options.keep_state && (!sequence.options.stop_tokens.empty() || (last && decode_->steps_all()));
    if (in_flight && (state_may_be_final || sequence.options.allowed)) return {};
    if (in_flight && last) continue;  // it ends with the token in flight
    if (in_flight && leaves_cell) return {};
    Finish reason = last ? Finish::length : table_->limit(sequence, after);
    if (reason == Finish::none && !restrict_next_token(sequence)) reason = Finish::stop;
    if (reason != Finish::none) {
      if (in_flight) return {};
      outputs_.push_back({id, -1, 0, reason});
      finish_sequence(id, sequence, reason);
      continue;
    }
    if (pages != nullptr && after > pages->tokens(slot)) pages->hold(slot, after);
    slots.push_back(slot);
  }
  table_->upload_pages();
  return slots;
}

// Resets the positions of the slots that are not in `slots`. A step of all slots also advances idle ones, whose positions must stay within
// the model's.
void Engine::rewind_other_slots(const std::vector<int64_t>& slots) {
  std::vector<int64_t> others;
  for (int64_t slot = 0; slot < state_.slots(); ++slot)
    if (!std::binary_search(slots.begin(), slots.end(), slot)) others.push_back(slot);
  if (others.empty()) return;
  state_.position().index_fill_(0, runtime::to_device(torch::tensor(others, torch::kInt64), model_.device()), 0);
}

// Whether the next step is a one-row step. False, too, if that depends on tokens in flight.
bool Engine::next_is_one_row() {
  const int64_t id = table_->owner(0);  // engines with one-row steps have one slot
  if (!drafting_ || id < 0 || table_->at(id).is_prefilling) return false;
  return drafting_->steps_one_row(id, table_->at(id).tokens, table_->at(id).steps_in_flight);
}

// Returns false if there is nothing to step, or if tokens in flight must be collected first.
bool Engine::launch(bool one_row) {
  const std::vector<int64_t> slots = slots_to_step();
  if (slots.empty()) return false;
  if (model_.config().max_positions > 0 && decode_->steps_all()) rewind_other_slots(slots);
  if (reader_->cell() > 0) prefill_->load_input_tokens(slots);
  {
    const runtime::DeviceRange range(ProfileLevel::phases, "step", model_.device(), {{"rows", static_cast<int64_t>(slots.size())}});
    decode_->run(slots, one_row);
  }
  auto& step = in_flight_.emplace_back();
  for (const int64_t slot : slots) {
    step.emplace_back(slot, table_->owner(slot));
    ++table_->at(step.back().second).steps_in_flight;
  }
  return true;
}

void Engine::take_token(Sequence& sequence, Output output) {
  const std::optional<Finish> reason = table_->advance(sequence, output.token);
  if (!reason) return;
  const int64_t id = output.sequence;
  output.finish = *reason;
  outputs_.push_back(std::move(output));
  if (*reason == Finish::none || (sequence.options.keep_state && *reason != Finish::not_finite)) prefill_->complete_cell(sequence);
  if (*reason != Finish::none) finish_sequence(id, sequence, *reason);
}

// The most draft tokens that a step of the sequence may read: no limit and no cell ends within a draft, except by its last token.
int64_t Engine::most_drafts(const Sequence& sequence) const {
  if (sequence.unread() > 0 || sequence.options.allowed) return 0;
  const int64_t after = sequence.seen + 1, positions = model_.config().max_positions, cell = reader_->cell();
  int64_t most = kMostDraftTokens;
  if (sequence.options.max_tokens >= 0) most = std::min(most, sequence.options.max_tokens - sequence.sampled - 1);
  if (positions > 0) most = std::min(most, positions - after);
  if (table_->pages() != nullptr) most = std::min(most, sequence.reserved_tokens - after);
  if (cell > 0) most = std::min(most, sequence.cell_begin + cell - 1 - after);
  return std::max<int64_t>(0, most);
}

// A step of all decoding sequences and of drafts of their tokens. Nothing is in flight before and after it.
void Engine::step_with_drafts() {
  drafted_.clear();
  const std::vector<int64_t> slots = slots_to_step();
  if (slots.empty()) return;
  if (reader_->cell() > 0) prefill_->load_input_tokens(slots);
  std::vector<Drafter::Request> requests;
  for (const int64_t slot : slots) {
    const int64_t id = table_->owner(slot);
    const Sequence& sequence = table_->at(id);
    requests.push_back({id, &sequence.tokens, &sequence.options.sampling, most_drafts(sequence)});
  }
  {
    const ProfileRange range(ProfileLevel::phases, "draft");
    drafting_->draft(requests);
  }
  std::vector<DecodeStep::DraftedSlot> drafted;
  PagePool* const pages = table_->pages();
  for (size_t i = 0; i < slots.size(); ++i) {
    const Sequence& sequence = table_->at(requests[i].sequence);
    const int64_t after = sequence.seen + 1 + static_cast<int64_t>(requests[i].drafts.size());
    if (pages != nullptr && after > pages->tokens(slots[i])) pages->hold(slots[i], after);
    drafted.push_back({slots[i], requests[i].drafts, sequence.options.stop_tokens});
    if (!requests[i].drafts.empty()) drafted_[requests[i].sequence] = {slots[i], sequence.seen};
  }
  table_->upload_pages();
  const auto start = std::chrono::steady_clock::now();
  const auto run_step = [&] {
    const runtime::DeviceRange range(ProfileLevel::phases, "step", model_.device(), {{"rows", static_cast<int64_t>(slots.size())}});
    return decode_->run_drafts(drafted);
  };
  std::vector<DecodeStep::DrawnTokens> drawn = run_step();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::vector<int64_t> added;
  for (size_t i = 0; i < drawn.size(); ++i)
    added.push_back(table_->at(requests[i].sequence).unread() > 0 ? 0 : static_cast<int64_t>(drawn[i].tokens.size()));
  drafting_->add_step(requests, added, seconds);
  for (size_t i = 0; i < drawn.size(); ++i) {
    Sequence& sequence = table_->at(requests[i].sequence);
    for (size_t token = 0; token < drawn[i].tokens.size(); ++token) {
      Output output{requests[i].sequence, drawn[i].tokens[token]};
      if (!drawn[i].log_probabilities.empty()) output.log_probability = drawn[i].log_probabilities[token];
      if (!drawn[i].top.empty() && output.token >= 0) {
        output.log_probability = drawn[i].top[token].log_probability;
        output.top = std::move(drawn[i].top[token].most_likely);
      }
      take_token(sequence, std::move(output));
    }
  }
}

// Waits for the tokens of the oldest step in flight, and drops those of sequences that have ended or been removed since.
void Engine::collect_oldest() {
  if (in_flight_.empty()) return;
  const auto wait = [this] {
    const ProfileRange range(ProfileLevel::phases, "wait for tokens");
    return decode_->finish_readback();
  };
  DecodeStep::Readback tokens = wait();
  const auto step = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const auto& [slot, id] : step) {
    Sequence* const sequence = table_->find(id);
    if (sequence == nullptr || sequence->finish != Finish::none) continue;
    --sequence->steps_in_flight;
    if (drafting_) drafting_->add_one_row_step();  // with drafts no other steps are in flight
    Output output{id, tokens.tokens[slot], tokens.log_probabilities != nullptr ? tokens.log_probabilities[slot] : 0};
    if (const auto top = tokens.top.find(slot); top != tokens.top.end() && output.token >= 0)
      output.log_probability = top->second.log_probability, output.top = std::move(top->second.most_likely);
    take_token(*sequence, std::move(output));
  }
}

// Waits for all steps in flight. The next step() returns their outputs.
void Engine::collect_all() {
  const torch::InferenceMode inference;
  std::swap(outputs_, collected_);
  while (!in_flight_.empty()) collect_oldest();
  std::swap(outputs_, collected_);
}

// Reads prompts and launches the next step, unless it takes drafts, which follow the tokens before them.
void Engine::begin_step() {
  if (!reader_->defers_round()) read_prompts();
  const bool one_row = next_is_one_row();
  if (drafting_ && !one_row) return;
  if (launch(one_row)) decode_->begin_readback();
}

const std::vector<Engine::Output>& Engine::step() {
  const torch::InferenceMode inference;
  outputs_ = std::exchange(collected_, {});
  if (outputs_.empty()) {
    if (in_flight_.empty()) begin_step();
    if (drafting_ && in_flight_.empty()) {
      step_with_drafts();
      return outputs_;
    }
    if (ahead_ && !in_flight_.empty()) begin_step();
    collect_oldest();
  }
  if (ahead_ && in_flight_.empty() && !drafting_) begin_step();  // the tokens had to be collected before the next step
  return outputs_;
}

void Engine::run(int64_t steps) {
  const torch::InferenceMode inference;
  for (int64_t i = 0; i < steps && launch(/*one_row=*/false); ++i) {
    for (const auto& [slot, id] : in_flight_.front()) {
      Sequence& sequence = table_->at(id);
      sequence.steps_in_flight = 0;
      if (static_cast<size_t>(++sequence.seen) == sequence.tokens.size()) sequence.tokens.push_back(0);
      prefill_->complete_cell(sequence);
    }
    in_flight_.clear();
  }
}

}  // namespace based

#include "based/generate/engine.h"

#include <algorithm>
#include <utility>

#include "based/models/limits.h"
#include "based/ops/transfer.h"

namespace based {

// A CPU works on what its caches hold.
int64_t default_prefill_tokens(torch::Device device) { return device.is_cuda() ? 8192 : 1024; }

Engine::Engine(LanguageModel& model, const EngineOptions& options)
    : model_(model),
      prefill_tokens_(options.prefill_tokens > 0 ? options.prefill_tokens : default_prefill_tokens(model.device())),
      cell_(options.decode.invariant ? cell_tokens(model.device().type()) : 0),
      ahead_(options.ahead),
      padded_columns_(options.padded_columns),
      patience_(options.patience) {
  if (options.slots < 1) throw UsageError("an engine needs at least one slot, got " + std::to_string(options.slots));
  if (options.cache_tokens < 0 || options.prefill_tokens < 0) throw UsageError("an engine's numbers of tokens must not be negative");
  const torch::InferenceMode inference;
  DecodeOptions decode = options.decode;
  const int64_t width = DecodeStep::width(options.slots, decode, model.device());
  state_ = model.make_state(width);
  if (state_.grows() && options.cache_tokens > 0) {
    pages_.emplace(width, options.cache_tokens, model.device());
    state_.use_pages(pages_->pages(), pages_->size());
  } else if (state_.grows()) {
    if (decode.invariant && !model.device().is_cpu())
      throw UsageError("an engine's invariant steps on a GPU need cache_tokens where the state grows");
    decode.steps = Steps::plain;
  }
  if (cell_ > 0) begins_.emplace(state_);
  owner_.assign(static_cast<size_t>(options.slots), -1);
  decode_ = std::make_unique<DecodeStep>(model, state_, decode);
  if (decode_->steps_all() && slots() > 1 && !pages_) warm_up();
}

// Whatever a GPU loads and allocates when it first reads prompts, many or one, is there before the first ones come.
void Engine::warm_up() {
  std::vector<int64_t> slots, starts{0};
  const int64_t tokens = std::max<int64_t>(1, prefill_tokens_ / this->slots());
  for (int64_t slot = 0; slot < this->slots(); ++slot) {
    slots.push_back(slot);
    starts.push_back(starts.back() + tokens);
    if (slot > 0 && slot + 1 < this->slots()) continue;
    const Tensor ids = torch::zeros({starts.back()}, torch::dtype(torch::kInt64).device(model_.device()));
    model_.prefill_last(ids, Sequences::packed(starts, starts.back(), model_.device()), state_, on_device(slots));
  }
  state_.zero(on_device(slots));
}

int64_t Engine::state_bytes() const {
  return state_.bytes() + pending_bytes() + begins_bytes() + (pages_ ? static_cast<int64_t>(pages_->pages().table.nbytes()) : 0);
}

int64_t Engine::free_slots() const { return std::count(owner_.begin(), owner_.end(), -1); }

Tensor Engine::on_device(const std::vector<int64_t>& values) const {
  return ops::to_device(torch::tensor(values, torch::kInt64), model_.device());
}

Engine::Sequence& Engine::find(int64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) throw Error("engine: no sequence " + std::to_string(sequence));
  return found->second;
}

// --- sequences come and go

// From token `from` on. The last one needs no position until a step reads it.
void Engine::check_text(const std::vector<int64_t>& text, size_t from) const {
  const auto tokens = static_cast<int64_t>(text.size());
  if (text.empty()) throw Error("generation needs at least one token of prompt");
  require_ids(model_.config(), std::span(text).subspan(from), "the text");
  require_positions(model_.config(), tokens - 1, "the text");
  if (pages_ && tokens - 1 > pages_->max_tokens())
    throw Error("a text of " + std::to_string(tokens) + " tokens, where the cache of all sequences has room for " +
                std::to_string(pages_->max_tokens()) + ": give it more tokens");
}

int64_t Engine::add_sequence(Sequence sequence) {
  check_sampling_options(sequence.options.sampling);
  if (sequence.options.max_tokens < -1)
    throw UsageError("max_tokens must be -1 or more, got " + std::to_string(sequence.options.max_tokens));
  check_text(sequence.text, 0);
  sequences_.emplace(next_, std::move(sequence));
  waiting_.push_back(next_);
  return next_++;
}

int64_t Engine::add(std::vector<int64_t> text, const SequenceOptions& options) {
  Sequence sequence;
  sequence.options = options;
  sequence.text = std::move(text);
  return add_sequence(std::move(sequence));
}

int64_t Engine::add(SequenceState from, const SequenceOptions& options) {
  Sequence sequence;
  sequence.options = options;
  sequence.text = std::move(from.ids);
  sequence.seen = from.state.position()[0].item<int64_t>();
  if (sequence.seen < 0 || sequence.unread() < 0)
    throw Error("a state that has seen " + std::to_string(sequence.seen) + " tokens, where its text has " +
                std::to_string(sequence.text.size()));
  if (cell_ > 0 && from.cells != cells()) sequence.seen = 0;
  if (cell_ > 0 && sequence.seen % cell_ != 0)
    throw Error("a state that has seen " + std::to_string(sequence.seen) + " tokens, which is not at the begin of a cell of " +
                std::to_string(cell_));
  sequence.first = sequence.seen;
  if (sequence.seen > 0) sequence.held = std::move(from.state);
  return add_sequence(std::move(sequence));
}

void Engine::extend(int64_t id, const std::vector<int64_t>& more) {
  land_early();
  Sequence& sequence = find(id);
  if (sequence.finish != Finish::none) throw Error("engine: sequence " + std::to_string(id) + " has ended");
  std::vector<int64_t> text = sequence.text;
  text.insert(text.end(), more.begin(), more.end());
  check_text(text, sequence.text.size());
  sequence.text = std::move(text);
  if (sequence.reads || more.empty()) return;  // it waits already
  if (cell_ > 0 && !goes_back(sequence)) return;
  sequence.reads = true;
  --going_on_;
  waiting_.push_front(id);
  if (!decode_->steps_all()) return;
  sequence.held = extract(sequence.slot, sequence.seen);  // its slot would be stepped, too
  release_slot(sequence);
}

void Engine::set_sampling(int64_t id, const SamplingOptions& sampling) {
  check_sampling_options(sampling);
  Sequence& sequence = find(id);
  if (sequence.options.sampling == sampling) return;
  land_early();
  sequence.options.sampling = sampling;
  const torch::InferenceMode inference;
  if (sequence.slot >= 0) decode_->set_sampling({sequence.slot}, {sampling});
}

void Engine::end(int64_t id) {
  if (find(id).options.keep_state) land_early();
  finish_sequence(find(id), Finish::stop);
}

void Engine::remove(int64_t id) {
  Sequence& sequence = find(id);
  sequence.options.keep_state = false;
  finish_sequence(sequence, Finish::stop);
  sequences_.erase(id);
}

void Engine::finish_sequence(Sequence& sequence, Finish why) {
  if (sequence.finish != Finish::none) return;
  sequence.finish = why;
  const bool keeps = sequence.options.keep_state && why != Finish::not_finite;
  if (sequence.slot >= 0 && owner_[static_cast<size_t>(sequence.slot)] == staged_ && staged_ >= 0) {
    if (keeps) sequence.held = staging_.extract(0);
    staged_ = -1;
  } else if (sequence.slot >= 0 && keeps) {
    sequence.held = state_of(sequence);
  } else if (!keeps) {
    sequence.held.reset();
  }
  if (sequence.reads) {
    std::erase_if(waiting_, [&](int64_t id) { return &sequences_.at(id) == &sequence; });
  } else {
    --going_on_;
  }
  release_slot(sequence);
}

void Engine::release_slot(Sequence& sequence) {
  if (sequence.slot < 0) return;
  owner_[static_cast<size_t>(sequence.slot)] = -1;
  if (pages_) pages_->release(sequence.slot);
  reserved_ -= std::exchange(sequence.reserved, 0);
  sequence.slot = -1;
}

ModelState Engine::extract(int64_t slot, int64_t tokens) {
  const torch::InferenceMode inference;
  decode_->flush({slot});
  ModelState one = state_.extract(slot);
  one.trim(tokens);
  return one;
}

void Engine::insert(const ModelState& one, int64_t slot) {
  state_.insert(one, slot);
  decode_->forget_pending({slot});
}

SequenceState Engine::snapshot(int64_t id) {
  land_early();
  Sequence& sequence = find(id);
  const torch::InferenceMode inference;
  if (id == staged_) return {sequence.text, staging_.extract(0), cells()};
  if (sequence.slot >= 0) return {sequence.text, state_of(sequence), cells()};
  if (sequence.held) return {sequence.text, sequence.held->extract(0), cells()};
  if (sequence.finish != Finish::none) throw Error("engine: sequence " + std::to_string(id) + " has ended, and its state was not kept");
  return {sequence.text, model_.make_state(1), cells()};
}

// --- reading

// A slot, and room in the cache for all that the sequence may need, where that is known; false: there is none yet.
bool Engine::give_slot(int64_t id, Sequence& sequence) {
  const auto tokens = static_cast<int64_t>(sequence.text.size());
  const int64_t to_draw = std::max<int64_t>(1, sequence.options.max_tokens - sequence.drawn);
  // max_tokens may be as large as int64 allows: it is compared with what is left, not added.
  if (pages_ && !reserve(sequence, tokens - 1 + std::min(to_draw, pages_->max_tokens() - (tokens - 1)))) return false;
  if (sequence.slot < 0) {
    const auto free = std::find(owner_.begin(), owner_.end(), -1);
    BASED_ASSERT(free != owner_.end());
    sequence.slot = free - owner_.begin();
    *free = id;
  }
  if (pages_) pages_->hold(sequence.slot, tokens - 1);
  return true;
}

bool Engine::reserve(Sequence& sequence, int64_t tokens) {
  const int64_t more = tokens - sequence.reserved;
  if (reserved_ + more > pages_->max_tokens()) return false;
  reserved_ += more;
  sequence.reserved = tokens;
  return true;
}

// The state of sequences that lay in no slot.
void Engine::put_into_slots(const std::vector<Sequence*>& sequences) {
  std::vector<int64_t> fresh;
  for (const Sequence* one : sequences)
    if (one->seen == 0) fresh.push_back(one->slot);
  if (!fresh.empty()) state_.zero(on_device(fresh)), decode_->forget_pending(fresh);
  for (Sequence* one : sequences) {
    if (one->held) insert(*one->held, one->slot);
    one->held.reset();
  }
}

// The probabilities of the tokens behind those that are being read, of the sequences that keep them: `hidden` is of all tokens read, and
// `tokens` how many are of each sequence.
void Engine::keep_scores(const Tensor& hidden, const std::vector<Sequence*>& sequences, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> rows, targets;
  for (int64_t i = 0, row = 0; i < static_cast<int64_t>(sequences.size()); row += tokens[i++])
    for (int64_t t = 0; sequences[i]->options.scores && t < tokens[i]; ++t) {
      rows.push_back(row + t);
      targets.push_back(sequences[i]->text[sequences[i]->seen + t + 1]);
    }
  const bool all = static_cast<int64_t>(rows.size()) == hidden.size(0);
  const Tensor chosen = all ? hidden : hidden.index_select(0, on_device(rows));
  const Tensor scores = model_.token_log_probabilities(chosen, on_device(targets), padded_columns_).to(torch::kCPU, torch::kFloat);
  const float* score = scores.const_data_ptr<float>();
  for (size_t i = 0; i < sequences.size(); ++i)
    if (sequences[i]->options.scores) {
      if (cell_ > 0) sequences[i]->scores.resize(static_cast<size_t>(sequences[i]->seen - sequences[i]->first));  // those of its cell anew
      sequences[i]->scores.insert(sequences[i]->scores.end(), score, score + tokens[i]);
      score += tokens[i];
    }
}

// Up to `most_tokens` more tokens of each of the sequences, into these slots of a state.
void Engine::read_piece(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences,
                        int64_t most_tokens) {
  std::vector<int64_t> ids, starts{0}, some, tokens;
  bool scores = false;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& one = *sequences[i];
    tokens.push_back(std::min(one.unread(), most_tokens));
    if (tokens.back() == 0) continue;
    ids.insert(ids.end(), one.text.begin() + one.seen, one.text.begin() + one.seen + tokens.back());
    starts.push_back(static_cast<int64_t>(ids.size()));
    some.push_back(slots[i]);
    scores = scores || one.options.scores;
  }
  if (some.empty()) return;
  tokens_read_ += static_cast<int64_t>(ids.size());
  const Sequences rows = Sequences::packed(starts, static_cast<int64_t>(ids.size()), model_.device());
  const Tensor read = on_device(ids), into = on_device(some);
  if (scores) {
    keep_scores(model_.prefill(read, rows, state, into), sequences, tokens);
  } else {
    model_.prefill_last(read, rows, state, into);
  }
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i]->seen += tokens[i];
}

// The same, cell by cell where there are cells: of one sequence then.
void Engine::read_pieces(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences,
                         int64_t most_tokens) {
  if (cell_ == 0) return read_piece(state, slots, sequences, most_tokens);
  BASED_ASSERT(sequences.size() == 1);
  for (int64_t left = std::min(to_read(*sequences[0]), most_tokens); left >= cell_; left -= cell_)
    read_piece(state, slots, sequences, cell_);
}

// What has been read goes on with steps.
void Engine::start(const std::vector<Sequence*>& sequences) {
  std::vector<Sequence*> draw;
  for (Sequence* one : sequences) {
    if (to_read(*one) > 0) continue;
    one->reads = false;
    ++going_on_;
    cell_ > 0 ? begin_cell(*one) : draw.push_back(one);
  }
  begin_drawing(draw);
}

// The next steps of these draw.
void Engine::begin_drawing(const std::vector<Sequence*>& sequences) {
  std::vector<int64_t> slots;
  std::vector<SamplingOptions> sampling;
  std::vector<const std::vector<int64_t>*> texts;
  for (const Sequence* one : sequences) slots.push_back(one->slot), sampling.push_back(one->options.sampling), texts.push_back(&one->text);
  if (slots.empty()) return;
  decode_->set_sampling(slots, sampling);
  decode_->set_texts(slots, texts);
}

// Sequences that have slots: their states go there, their prompts are read by one prefill, and those that are read to the end go on.
void Engine::read_together(const std::vector<int64_t>& ids, int64_t most_tokens) {
  std::vector<Sequence*> sequences;
  std::vector<int64_t> slots;
  for (const int64_t id : ids) sequences.push_back(&sequences_.at(id)), slots.push_back(sequences.back()->slot);
  if (pages_) pages_->upload();
  put_into_slots(sequences);
  read_pieces(state_, slots, sequences, most_tokens);
  start(sequences);
}

void Engine::stage(int64_t id, Sequence& sequence) {
  staged_ = id;
  staging_ = model_.make_state(1);
  if (sequence.held) staging_.insert(*sequence.held, 0);
  sequence.held.reset();
}

// The next piece of the staged sequence, which goes to its slot behind the last one. What is left of the budget.
int64_t Engine::read_staged(int64_t budget) {
  if (staged_ < 0) return budget;
  Sequence& sequence = sequences_.at(staged_);
  const int64_t before = sequence.seen;
  read_pieces(staging_, {0}, {&sequence}, budget);
  if (to_read(sequence) == 0) {
    if (pages_) pages_->upload();
    staging_.trim(sequence.seen);
    insert(staging_, sequence.slot);
    staging_ = {};
    staged_ = -1;
    start({&sequence});
  }
  return budget - (sequence.seen - before);
}

bool Engine::read_some() {
  const int64_t begun = most_to_read(prefill_tokens_);
  int64_t budget = read_staged(begun);
  std::vector<int64_t> together;
  while (!waiting_.empty() && budget > 0) {
    const int64_t id = waiting_.front();
    Sequence& sequence = sequences_.at(id);
    const int64_t first = most_to_read(budget);
    const bool whole = to_read(sequence) <= first, alone = cell_ > 0;
    if (!whole && !alone && budget < begun) break;
    if (!whole && decode_->steps_all() && staged_ >= 0) break;
    if ((sequence.slot < 0 && free_slots() == 0) || !give_slot(id, sequence)) break;
    budget -= std::min(to_read(sequence), first);
    if (!whole && decode_->steps_all()) {
      waiting_.pop_front();
      stage(id, sequence);
      read_staged(first);
      continue;
    }
    if (whole) waiting_.pop_front();
    together.push_back(id);
    if (!alone && whole) continue;
    read_together(together, first);
    together.clear();
  }
  if (!together.empty()) read_together(together, begun);
  return budget < begun;
}

bool Engine::can_wait() {
  if (patience_ == 0 || going_on_ == 0 || staged_ >= 0) return false;
  unused_ += std::min(free_slots(), static_cast<int64_t>(waiting_.size()));
  if (unused_ < patience_ * slots()) return true;
  unused_ = 0;
  return false;
}

void Engine::read(const std::function<void()>& after_each) {
  const torch::InferenceMode inference;
  while (read_some())
    if (after_each) after_each();
}

// --- steps

// Why a sequence cannot have so many tokens read; what it may need of the cache is then reserved.
Finish Engine::limit(Sequence& sequence, int64_t tokens) {
  const int64_t positions = model_.config().max_positions;
  if (positions > 0 && tokens > positions) return Finish::positions;
  if (pages_ && tokens > sequence.reserved && !reserve(sequence, tokens)) return Finish::cache_full;
  return Finish::none;
}

// Those that can take another token behind those in flight; the others end. None at all where a token in flight must be looked at first: an
// end may follow, and the state that a step too many would change may be asked for.
std::vector<int64_t> Engine::slots_to_step() {
  std::vector<int64_t> slots;
  for (size_t slot = 0; slot < owner_.size(); ++slot) {
    if (owner_[slot] < 0) continue;
    Sequence& sequence = sequences_.at(owner_[slot]);
    if (sequence.reads) continue;
    const bool flies = sequence.in_flight > 0, last = sequence.drawn + sequence.draws_in_flight() == sequence.options.max_tokens;
    const int64_t after = sequence.seen + sequence.in_flight + 1;
    const bool ends_cell = cell_ > 0 && after > sequence.begin + cell_;  // which is read before it is stepped on
    if (flies && sequence.options.keep_state) return {};
    if (flies && last) continue;  // it ends with that token
    if (flies && ends_cell) return {};
    const Finish why = last ? Finish::length : limit(sequence, after);
    if (why != Finish::none) {
      if (flies) return {};
      drawn_.push_back({owner_[slot], -1, 0, why});
      finish_sequence(sequence, why);
      continue;
    }
    if (pages_ && after > pages_->tokens(static_cast<int64_t>(slot))) pages_->hold(static_cast<int64_t>(slot), after);
    slots.push_back(static_cast<int64_t>(slot));
  }
  if (pages_) pages_->upload();
  return slots;
}

// Where all slots are stepped, idle ones are, too: their positions must stay among those that the model has.
void Engine::rewind_others(const std::vector<int64_t>& slots) {
  std::vector<int64_t> others;
  for (int64_t slot = 0; slot < state_.slots(); ++slot)
    if (!std::binary_search(slots.begin(), slots.end(), slot)) others.push_back(slot);
  if (!others.empty()) state_.position().index_fill_(0, on_device(others), 0);
}

void Engine::take_token(int64_t id, Sequence& sequence, int64_t token, float log_probability) {
  Finish why = Finish::none;
  if (static_cast<size_t>(++sequence.seen) < sequence.text.size()) return;  // the next token was given
  if (token < 0) {
    why = Finish::not_finite;
  } else {
    sequence.text.push_back(token);
    ++sequence.drawn;
    const auto& stops = sequence.options.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end())
      why = Finish::stop;
    else if (sequence.drawn == sequence.options.max_tokens)
      why = Finish::length;
  }
  drawn_.push_back({id, token, log_probability, why});
  if (why == Finish::none || (sequence.options.keep_state && why != Finish::not_finite)) complete_cell(sequence);
  if (why != Finish::none) finish_sequence(sequence, why);
}

// False: there is nothing to step, or not yet.
bool Engine::launch() {
  const std::vector<int64_t> slots = slots_to_step();
  if (slots.empty()) return false;
  if (model_.config().max_positions > 0 && decode_->steps_all()) rewind_others(slots);
  if (cell_ > 0) give_tokens(slots);
  decode_->run(slots);
  auto& flight = in_flight_.emplace_back();
  for (const int64_t slot : slots) {
    flight.emplace_back(slot, owner_[static_cast<size_t>(slot)]);
    ++sequences_.at(flight.back().second).in_flight;
  }
  return true;
}

// The tokens of the oldest step in flight, of sequences that still want them.
void Engine::land() {
  if (in_flight_.empty()) return;
  const DecodeStep::Fetched got = decode_->fetched();
  const auto flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const auto& [slot, id] : flight) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || found->second.finish != Finish::none) continue;
    --found->second.in_flight;
    take_token(id, found->second, got.tokens[slot], got.log_probabilities != nullptr ? got.log_probabilities[slot] : 0);
  }
}

void Engine::land_early() {
  const torch::InferenceMode inference;
  std::swap(drawn_, landed_);
  while (!in_flight_.empty()) land();
  std::swap(drawn_, landed_);
}

const std::vector<Engine::Drawn>& Engine::step() {
  const torch::InferenceMode inference;
  const auto begin = [this] {
    if (!can_wait()) read_some();
    if (launch()) decode_->fetch();
  };
  drawn_ = std::exchange(landed_, {});
  if (drawn_.empty()) {
    if (in_flight_.empty()) begin();
    if (ahead_ && !in_flight_.empty()) begin();
    land();
  }
  if (ahead_ && in_flight_.empty()) begin();  // where the tokens had to be looked at first
  return drawn_;
}

void Engine::run(int64_t steps) {
  const torch::InferenceMode inference;
  for (int64_t i = 0; i < steps && launch(); ++i) {
    for (const auto& [slot, id] : in_flight_.front()) {
      Sequence& sequence = sequences_.at(id);
      sequence.in_flight = 0;
      if (static_cast<size_t>(++sequence.seen) == sequence.text.size()) sequence.text.push_back(0);
      complete_cell(sequence);
    }
    in_flight_.clear();
  }
}

}  // namespace based

#include "based/serve/service/job_scheduler.h"

#include <algorithm>
#include <utility>

#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/generate/cells.h"

namespace based {
namespace {

// An event that throws must not end the engine's thread.
template <class Event, class... Arguments>
void call_event(const std::string& request_id, const Event& event, Arguments&&... arguments) {
  if (!event) return;
  try {
    event(std::forward<Arguments>(arguments)...);
  } catch (const std::exception& error) {
    log_error(request_id + ": " + error.what());
  }
}

double seconds_between(JobScheduler::Clock::time_point begin, JobScheduler::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

bool wants_log_probabilities(const GenerationJob& job) {
  return job.log_probabilities || job.prompt_log_probabilities || job.top_log_probabilities > 0;
}

template <class Tops>
TokenScore token_score(const GenerationJob& job, int64_t id, float log_probability, const Tops& top) {
  TokenScore score{id, 0, {}};
  if (!wants_log_probabilities(job)) return score;
  score.log_probability = log_probability;
  const size_t count = std::min(static_cast<size_t>(job.top_log_probabilities), top.size());
  score.top.reserve(count);
  for (size_t i = 0; i < count; ++i) score.top.emplace_back(top[i].id, top[i].log_probability);
  return score;
}

}  // namespace

JobScheduler::JobScheduler(Engine& engine, const Tokenizer& tokenizer, JobSchedulerOptions options, ServiceMetrics& metrics)
    : engine_(engine), tokenizer_(tokenizer), options_(std::move(options)), metrics_(metrics), plans_(std::make_shared<Plans>()) {
  plans_->wake = options_.wake;
}

JobScheduler::~JobScheduler() {
  const std::lock_guard lock(plans_->mutex);
  plans_->wake = nullptr;
}

// --- jobs

void JobScheduler::add(JobId id, JobId request, GenerationJob job, Clock::time_point submitted) {
  auto run = std::make_unique<Run>();
  run->request = request;
  if (job.start) run->ids = job.start->ids;
  run->ids.insert(run->ids.end(), job.ids.begin(), job.ids.end());
  run->submitted = submitted;
  run->choices.reserve(static_cast<size_t>(job.choices));
  for (int64_t c = 0; c < job.choices; ++c) run->choices.emplace_back(TextStream(tokenizer_, job.stops));
  run->job = std::move(job);
  runs_.emplace(id, std::move(run));
  push({Unit::Kind::prompt, id, 0});
}

// `first`: before the request's other units.
void JobScheduler::push(const Unit& unit, bool first) {
  const Run& run = *runs_.at(unit.job);
  queue_.push(run.job.client, run.request, unit, first);
}

int64_t JobScheduler::running_jobs() const {
  std::vector<JobId> running;
  running.reserve(sequences_.size() + resumed_.size());
  for (const auto& [sequence, unit] : sequences_) running.push_back(unit.job);
  for (const Unit& unit : resumed_) running.push_back(unit.job);
  std::sort(running.begin(), running.end());
  return std::unique(running.begin(), running.end()) - running.begin();
}

void JobScheduler::end_job(JobId id) {
  for (auto one = sequences_.begin(); one != sequences_.end();) {
    if (one->second.job != id) {
      ++one;
      continue;
    }
    engine_.remove(one->first);
    one = sequences_.erase(one);
  }
  const Run& run = *runs_.at(id);
  const auto of_job = [id](const Unit& unit) { return unit.job == id; };
  std::erase_if(resumed_, of_job);
  queue_.remove(run.job.client, run.request, of_job);
  for (const Choice& choice : run.choices) parked_bytes_ -= choice.parked_bytes;
  runs_.erase(id);
}

void JobScheduler::add_profile_spans(JobId id, const Run& run) {
  if (!profiles(ProfileLevel::phases)) return;
  const auto now = Clock::now();
  const auto started = run.started_at.value_or(now), prompt_read = run.prompt_read_at.value_or(now);
  int64_t tokens = 0;
  for (const Choice& choice : run.choices) tokens += static_cast<int64_t>(choice.out.ids.size());
  const auto add = [&](const char* name, Clock::time_point begin, Clock::time_point end, const ProfileArguments& arguments) {
    add_profile_span({name, "job", static_cast<uint64_t>(id), begin, end, run.job.request_id, arguments});
  };
  const auto prompt_tokens = static_cast<int64_t>(run.ids.size());
  add("job", run.submitted, now, {{"prompt_tokens", prompt_tokens}, {"tokens", tokens}});
  add("queue", run.submitted, started, {});
  if (run.started_at) add("prompt", started, prompt_read, {{"tokens", prompt_tokens}, {"cached_tokens", run.cached_tokens}});
  if (run.prompt_read_at) add("decode", prompt_read, now, {{"tokens", tokens}});
}

void JobScheduler::cancel(JobId id, const ApiError& why) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  add_profile_spans(id, *found->second);
  const auto failed = std::move(found->second->job.events.failed);
  const std::string request = found->second->job.request_id;
  end_job(id);
  metrics_.job_failed();
  call_event(request, failed, why);
}

void JobScheduler::cancel_all(const ApiError& why) {
  while (!runs_.empty()) cancel(runs_.begin()->first, why);
}

void JobScheduler::expire(Clock::time_point now) {
  std::vector<JobId> late;
  for (const auto& [id, run] : runs_)
    if (run->job.deadline && *run->job.deadline <= now) late.push_back(id);
  for (const JobId id : late) cancel(id, ApiError(504, "timeout_error", "the request took longer than its deadline", "", "deadline"));
}

// --- starting sequences

bool JobScheduler::has_work() const {
  if (!resumed_.empty() || !queue_.empty() || !sequences_.empty()) return true;
  const std::lock_guard lock(plans_->mutex);
  return !plans_->ready.empty();
}

void JobScheduler::step() {
  take_plans();
  fill_slots();
  const std::vector<Engine::Output> outputs = engine_.step();
  for (const Engine::Output& output : outputs) take_output(output);
}

void JobScheduler::take_plans() {
  std::vector<std::pair<JobId, PrefixPlan>> ready;
  {
    const std::lock_guard lock(plans_->mutex);
    ready.swap(plans_->ready);
  }
  for (auto& [id, plan] : ready) {
    const auto found = runs_.find(id);
    if (found == runs_.end()) continue;  // its job was cancelled
    found->second->plan = std::move(plan);
    begin_prompt(*found->second);
    resumed_.push_back({Unit::Kind::prompt, id, 0});
  }
}

void JobScheduler::fill_slots() {
  while (sequences() < engine_.slots() && !(resumed_.empty() && queue_.empty())) {
    Unit unit;
    if (resumed_.empty()) {
      unit = queue_.pop();
    } else {
      unit = resumed_.front();
      resumed_.pop_front();
    }
    try {
      start(unit);
    } catch (const ApiError& error) {
      cancel(unit.job, error);
    } catch (const Error& error) {  // too long, an id outside the vocabulary, options out of range
      cancel(unit.job, ApiError::invalid("", error.what()));
    }
  }
}

void JobScheduler::start(const Unit& unit) {
  Run& run = *runs_.at(unit.job);
  switch (unit.kind) {
    case Unit::Kind::prompt:
      if (!run.started) {
        run.started = true;
        run.started_at = Clock::now();
        if (!request_plan(unit.job, run)) return;  // take_plans() continues
        begin_prompt(run);
      }
      return start_prompt_stage(unit, run);
    case Unit::Kind::choice: return start_choice(unit, run);
    case Unit::Kind::end_state: return start_end_state(unit, run);
  }
}

// Looks the prompt up in the prefix cache. False if its state must be read from disk first.
bool JobScheduler::request_plan(JobId id, Run& run) {
  const GenerationJob& job = run.job;
  if (options_.prefixes == nullptr || !job.use_prefixes) return true;
  PrefixRequest request{job.owner, run.ids};
  if (job.prompt_log_probabilities) request.first_scored = run.first_reported();
  request.top_log_probabilities = job.top_log_probabilities;
  request.max_tokens = job.max_tokens;
  const auto before = static_cast<int64_t>(run.ids.size() - job.ids.size());
  request.boundaries.reserve(job.boundaries.size());
  for (const int64_t tokens : job.boundaries) request.boundaries.push_back(before + tokens);
  const auto ready = [plans = plans_, id](PrefixPlan plan) {
    const std::lock_guard lock(plans->mutex);
    plans->ready.emplace_back(id, std::move(plan));
    if (plans->wake) plans->wake();
  };
  try {
    std::optional<PrefixPlan> plan = options_.prefixes->plan(request, ready);
    if (!plan) return false;
    run.plan = std::move(*plan);
  } catch (const std::exception& error) {
    log_error(job.request_id + ": prefix cache: " + error.what());
  }
  return true;
}

// Decides from which state the prompt is read, and where reading it is interrupted.
void JobScheduler::begin_prompt(Run& run) {
  const GenerationJob& job = run.job;
  run.base = job.start;
  const int64_t given = run.base ? run.base->seen() : 0, last = static_cast<int64_t>(run.ids.size()) - 1;
  if (run.plan.state && run.plan.state->seen() > given) {
    run.base = run.plan.state;
    if (run.scores_left() && run.next_scored() <= run.base->seen()) {
      const PromptScores& known = *run.plan.scores;
      const auto begin = known.scores.begin() + (run.next_scored() - known.first);
      run.scores.assign(begin, begin + (run.base->seen() + 1 - run.next_scored()));
    }
  }
  run.cached_tokens = run.base ? run.base->seen() : 0;
  for (const int64_t cut : run.plan.cuts)
    if (cut > run.cached_tokens && cut <= last) run.cuts.push_back(cut);
  run.reads_all = job.choices > 1 || job.max_tokens == 0 || job.keep_prompt_state || job.keep_end_state;
  if (run.reads_all && (run.cuts.empty() || run.cuts.back() != last)) run.cuts.push_back(last);
}

// With cells, the engine reads a sequence from its first token if its state was made otherwise.
bool JobScheduler::continues_base(const Run& run) const {
  return run.base && (options_.cell == 0 || run.base->cells == describe_cells(engine_.model()));
}

bool JobScheduler::base_covers(const Run& run, int64_t cut) const {
  return continues_base(run) && run.base->seen() >= (options_.cell > 0 ? cut / options_.cell * options_.cell : cut);
}

int64_t JobScheduler::add_sequence(const SharedState& base, std::vector<int64_t> ids, const SequenceOptions& options) {
  if (!base) return engine_.add(std::move(ids), options);
  return engine_.add(SequenceState{std::move(ids), base->state, base->cells}, options);
}

void JobScheduler::start_prompt_stage(const Unit& unit, Run& run) {
  const auto is_read = [&run, this](int64_t cut) {
    return base_covers(run, cut) && !(run.job.prompt_log_probabilities && run.next_scored() <= cut);
  };
  while (run.next_cut < run.cuts.size() && is_read(run.cuts[run.next_cut])) ++run.next_cut;
  if (run.next_cut == run.cuts.size()) return finish_prompt(unit, run);
  SequenceOptions options;
  options.max_tokens = 0;
  options.keep_state = true;
  options.scores = run.scores_left();
  options.first_scored = run.next_scored();
  options.top_log_probabilities = run.job.top_log_probabilities;
  const auto end = run.ids.begin() + run.cuts[run.next_cut] + 1;
  sequences_.emplace(add_sequence(run.base, {run.ids.begin(), end}, options), unit);
}

// No stage is left: the choices begin.
void JobScheduler::finish_prompt(const Unit& unit, Run& run) {
  if (run.reads_all) {
    if (run.base->ids != run.ids)  // a state of the cache or of the job covers the prompt
      run.base = std::make_shared<const SequenceState>(SequenceState{run.ids, run.base->state, run.base->cells});
    report_prompt(run);
  }
  if (run.job.max_tokens > 0) {
    for (int64_t c = 1; c < run.job.choices; ++c) push({Unit::Kind::choice, unit.job, c});
    return start_choice({Unit::Kind::choice, unit.job, 0}, run);
  }
  const int64_t choices = run.job.choices;
  for (int64_t c = 0; c < choices; ++c)  // the last one ends the job
    end_choice({Unit::Kind::choice, unit.job, c}, run, "", run.job.keep_end_state ? run.base : nullptr);
}

// The tokens that the choice's next sequence may have. With cells, a slice ends with a cell, so that no token is read twice.
int64_t JobScheduler::tokens_of_slice(const Run& run, const Choice& choice) const {
  const auto generated = static_cast<int64_t>(choice.out.ids.size());
  const int64_t left = run.job.max_tokens - generated;
  if (options_.slice_tokens == 0 || engine_.state().grows()) return left;
  int64_t slice = options_.slice_tokens;
  if (options_.cell > 0) {
    const int64_t seen = static_cast<int64_t>(run.ids.size()) + generated - 1;  // when the first token of the slice is sampled
    slice = (seen / options_.cell + std::max<int64_t>(1, slice / options_.cell)) * options_.cell - seen;
  }
  return std::min(left, slice);
}

void JobScheduler::start_choice(const Unit& unit, Run& run) {
  const GenerationJob& job = run.job;
  Choice& choice = run.choices[static_cast<size_t>(unit.choice)];
  SequenceOptions options;
  options.sampling = job.sampling;
  options.sampling.seed = choice_seed(job.sampling.seed, unit.choice);
  options.max_tokens = tokens_of_slice(run, choice);
  options.stop_tokens = job.stop_tokens;
  if (const auto end = tokenizer_.end_of_text(); end && !job.ignore_end_of_text) options.stop_tokens.push_back(*end);
  options.allowed = job.allowed;
  options.first_generated = static_cast<int64_t>(run.ids.size());
  const bool is_last = static_cast<int64_t>(choice.out.ids.size()) + options.max_tokens == job.max_tokens;
  options.keep_state = run.keeps_end() || !is_last;
  if (wants_log_probabilities(job)) options.top_log_probabilities = std::max<int64_t>(1, job.top_log_probabilities);
  if (const SharedState slice = std::exchange(choice.slice, nullptr)) {
    parked_bytes_ -= std::exchange(choice.parked_bytes, 0);
    sequences_.emplace(add_sequence(slice, slice->ids, options), unit);
    return;
  }
  options.scores = run.scores_left();
  options.first_scored = std::max<int64_t>(1, run.next_scored());
  sequences_.emplace(add_sequence(run.base, run.ids, options), unit);
}

// A state cannot be rolled back to the end of the returned text: the text is read once more, from the end of the prompt.
void JobScheduler::start_end_state(const Unit& unit, Run& run) {
  std::vector<int64_t> ids = run.ids;
  const std::vector<int64_t> kept = ids_of_text(tokenizer_, run.choices.at(static_cast<size_t>(unit.choice)).out);
  ids.insert(ids.end(), kept.begin(), kept.end());
  SequenceOptions options;
  options.max_tokens = 0;
  options.keep_state = true;
  sequences_.emplace(add_sequence(run.base, std::move(ids), options), unit);
}

// --- results

void JobScheduler::take_output(const Engine::Output& output) {
  const auto found = sequences_.find(output.sequence);
  if (found == sequences_.end()) return;  // its job was cancelled
  const Unit unit = found->second;
  Run& run = *runs_.at(unit.job);
  switch (unit.kind) {
    case Unit::Kind::prompt: return finish_prompt_stage(unit, run, output.sequence);
    case Unit::Kind::choice: return take_token(unit, run, output);
    case Unit::Kind::end_state: {
      std::string rest = std::move(run.choices[static_cast<size_t>(unit.choice)].rest);
      return end_choice(unit, run, std::move(rest), take_state(output.sequence));
    }
  }
}

// The state that an ended sequence has kept; the engine then forgets the sequence.
JobScheduler::SharedState JobScheduler::take_state(int64_t sequence) {
  auto state = std::make_shared<const SequenceState>(engine_.take_state(sequence));
  engine_.remove(sequence);
  sequences_.erase(sequence);
  return state;
}

void JobScheduler::insert_prefix(const Run& run, const SharedState& state, std::shared_ptr<const PromptScores> scores) {
  try {
    options_.prefixes->insert(run.job.owner, state, std::move(scores));
  } catch (const std::exception& error) {
    log_error(run.job.request_id + ": prefix cache: " + error.what());
  }
}

void JobScheduler::finish_prompt_stage(const Unit& unit, Run& run, int64_t sequence) {
  const int64_t cut = run.cuts[run.next_cut++];
  if (run.job.prompt_log_probabilities) keep_scores(run, sequence);
  run.base = take_state(sequence);
  if (std::find(run.plan.cuts.begin(), run.plan.cuts.end(), cut) != run.plan.cuts.end())
    insert_prefix(run, run.base, scores_of_state(run, *run.base));
  if (run.next_cut == run.cuts.size() && run.reads_all) report_prompt(run);
  resumed_.push_front(unit);
}

// The scores that a prompt beginning with the state's tokens needs if it starts from the state, or null if it needs none.
std::shared_ptr<const PromptScores> JobScheduler::scores_of_state(const Run& run, const SequenceState& state) {
  const int64_t first = run.first_reported(), count = state.seen() + 1 - first;
  if (!run.job.prompt_log_probabilities || count <= 0 || count > static_cast<int64_t>(run.scores.size())) return nullptr;
  PromptScores scores{first, run.job.top_log_probabilities, {run.scores.begin(), run.scores.begin() + count}};
  return std::make_shared<const PromptScores>(std::move(scores));
}

void JobScheduler::keep_scores(Run& run, int64_t sequence) const {
  const auto prompt = static_cast<int64_t>(run.ids.size());
  const std::vector<float>& scores = engine_.scores(sequence);
  const int64_t first = run.next_scored();
  const int64_t count = std::clamp<int64_t>(prompt - first, 0, static_cast<int64_t>(scores.size()));
  run.scores.reserve(run.scores.size() + static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto top = run.job.top_log_probabilities > 0 ? engine_.top_scores(sequence, at) : std::span<const TokenProbability>();
    run.scores.push_back(token_score(run.job, run.ids[static_cast<size_t>(first + i)], scores[at], top));
  }
}

void JobScheduler::report_prompt(Run& run) {
  if (std::exchange(run.prompt_reported, true)) return;
  run.prompt_read_at = Clock::now();
  const auto prompt = static_cast<int64_t>(run.ids.size());
  metrics_.add_prompt(prompt, run.cached_tokens);
  PromptRead read;
  read.prompt_tokens = prompt;
  read.cached_tokens = run.cached_tokens;
  if (!run.scores.empty()) read.first_scored = run.first_reported() - (prompt - static_cast<int64_t>(run.job.ids.size()));
  read.scores = std::move(run.scores);
  if (run.job.keep_prompt_state) read.state = run.base;
  call_event(run.job.request_id, run.job.events.prompt_read, std::move(read));
}

void JobScheduler::take_token(const Unit& unit, Run& run, const Engine::Output& output) {
  if (!run.prompt_reported) {
    if (run.scores_left()) keep_scores(run, output.sequence);
    report_prompt(run);
  }
  Choice& choice = run.choices[static_cast<size_t>(unit.choice)];
  if (output.token >= 0) {
    const auto now = Clock::now();
    metrics_.add_tokens(1);
    if (!std::exchange(run.first_token_seen, true)) metrics_.observe_first_token(seconds_between(run.submitted, now));
    if (!choice.out.ids.empty()) metrics_.observe_next_token(seconds_between(choice.last_token, now));
    choice.last_token = now;
    choice.out.ids.push_back(output.token);
    ChoicePiece piece;
    piece.choice = unit.choice;
    {
      const ProfileRange range(ProfileLevel::phases, "detokenize");
      if (output.finish != Finish::stop) piece.text = choice.stream.push(output.token);
    }
    piece.tokens.push_back(token_score(run.job, output.token, output.log_probability, output.top));
    choice.out.text += piece.text;
    call_event(run.job.request_id, run.job.events.piece, std::move(piece));
  }
  const bool is_whole = static_cast<int64_t>(choice.out.ids.size()) == run.job.max_tokens;
  if (output.finish == Finish::length && !is_whole && !choice.stream.stopped()) return end_slice(unit, run, output.sequence);
  if (output.finish != Finish::none || choice.stream.stopped()) finish_choice(unit, run, output);
}

// The choice continues at once unless another request needs its slot. Later it continues before the request's choices that have not begun,
// so that a request has no more states than it had slots.
void JobScheduler::end_slice(const Unit& unit, Run& run, int64_t sequence) {
  Choice& choice = run.choices[static_cast<size_t>(unit.choice)];
  choice.slice = take_state(sequence);
  const int64_t bytes = choice.slice->state.bytes();
  const bool others = !resumed_.empty() || queue_.has_others(run.job.client, run.request);
  if (!others || parked_bytes_ + bytes > options_.parked_bytes) return resumed_.push_front(unit);
  choice.parked_bytes = bytes;
  parked_bytes_ += bytes;
  push(unit, /*first=*/true);
}

void JobScheduler::finish_choice(const Unit& unit, Run& run, const Engine::Output& output) {
  Choice& choice = run.choices[static_cast<size_t>(unit.choice)];
  const std::string rest = choice.stream.finish();
  choice.out.text += rest;
  const auto end_of_text = tokenizer_.end_of_text();
  if (choice.stream.stopped())
    choice.out.finish_reason = "stop";
  else if (output.finish == Finish::stop)
    choice.out.finish_reason = end_of_text && output.token == *end_of_text ? "end_of_text" : "stop";
  else
    choice.out.finish_reason = finish_name(output.finish);
  SharedState state;
  if (run.keeps_end() && output.finish != Finish::none && output.finish != Finish::not_finite) {
    state = take_state(output.sequence);
    if (run.plan.keep_end) insert_prefix(run, state, nullptr);
  } else {
    engine_.remove(output.sequence);
    sequences_.erase(output.sequence);
  }
  if (!run.job.keep_end_state || output.finish == Finish::not_finite) return end_choice(unit, run, rest, nullptr);
  const std::vector<int64_t> text_ids = ids_of_text(tokenizer_, choice.out);
  if (text_ids.empty()) return end_choice(unit, run, rest, run.base);
  if (state && text_ids == choice.out.ids) return end_choice(unit, run, rest, state);
  choice.rest = rest;
  resumed_.push_front({Unit::Kind::end_state, unit.job, unit.choice});
}

// `rest`: the text that was held back until the end.
void JobScheduler::end_choice(const Unit& unit, Run& run, std::string rest, SharedState state) {
  const GeneratedText& out = run.choices[static_cast<size_t>(unit.choice)].out;
  ChoiceEnd end{unit.choice, std::move(rest), out.finish_reason, static_cast<int64_t>(out.ids.size()), std::move(state)};
  call_event(run.job.request_id, run.job.events.choice_ended, std::move(end));
  if (++run.ended < run.job.choices) return;
  metrics_.job_succeeded(seconds_between(run.submitted, Clock::now()));
  add_profile_spans(unit.job, run);
  const std::unique_ptr<Run> ended = std::move(runs_.at(unit.job));
  runs_.erase(unit.job);
  call_event(ended->job.request_id, ended->job.events.done);
}

}  // namespace based

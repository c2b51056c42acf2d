#include "based/serve/service/job_scheduler.h"

#include <algorithm>
#include <utility>

#include "based/core/log.h"
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

JobScheduler::JobScheduler(Engine& engine, const Tokenizer& tokenizer, int64_t cell, PrefixSource* prefixes, ServiceMetrics& metrics)
    : engine_(engine), tokenizer_(tokenizer), cell_(cell), prefixes_(prefixes), metrics_(metrics) {}

// --- jobs

void JobScheduler::add(JobId id, GenerationJob job, Clock::time_point submitted) {
  auto run = std::make_unique<Run>();
  if (job.start) run->ids = job.start->ids;
  run->ids.insert(run->ids.end(), job.ids.begin(), job.ids.end());
  run->submitted = submitted;
  run->choices.reserve(static_cast<size_t>(job.choices));
  for (int64_t c = 0; c < job.choices; ++c) run->choices.emplace_back(TextStream(tokenizer_, job.stops));
  run->job = std::move(job);
  runs_.emplace(id, std::move(run));
  units_.push_back({Unit::Kind::prompt, id, 0});
  ++waiting_jobs_;
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
  std::erase_if(units_, [&](const Unit& unit) { return unit.job == id; });
  if (!runs_.at(id)->started) --waiting_jobs_;
  runs_.erase(id);
}

void JobScheduler::cancel(JobId id, const ApiError& why) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
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

void JobScheduler::step() {
  fill_slots();
  const std::vector<Engine::Output> outputs = engine_.step();
  for (const Engine::Output& output : outputs) take_output(output);
}

void JobScheduler::fill_slots() {
  while (sequences() < engine_.slots() && !units_.empty()) {
    const Unit unit = units_.front();
    units_.pop_front();
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
      if (!run.started) start_job(run);
      return start_prompt_stage(unit, run);
    case Unit::Kind::choice: return start_choice(unit, run);
    case Unit::Kind::end_state: return start_end_state(unit, run);
  }
}

// Looks the prompt up in the prefix cache and decides where reading it is interrupted.
void JobScheduler::start_job(Run& run) {
  run.started = true;
  --waiting_jobs_;
  const GenerationJob& job = run.job;
  run.base = job.start;
  const int64_t given = run.base ? run.base->seen() : 0, last = static_cast<int64_t>(run.ids.size()) - 1;
  if (prefixes_ != nullptr && job.use_prefixes && !job.prompt_log_probabilities) {
    try {
      run.plan = prefixes_->plan(job.owner, run.ids);
    } catch (const std::exception& error) {
      log_error(job.request_id + ": prefix cache: " + error.what());
      run.plan = {};
    }
    if (run.plan.state && run.plan.state->seen() > given) run.base = run.plan.state;
  }
  run.cached_tokens = run.base ? run.base->seen() : 0;
  for (const int64_t cut : run.plan.cuts)
    if (cut > run.cached_tokens && cut <= last) run.cuts.push_back(cut);
  run.reads_all = job.choices > 1 || job.max_tokens == 0 || job.keep_prompt_state || job.keep_end_state;
  if (run.reads_all && (run.cuts.empty() || run.cuts.back() != last)) run.cuts.push_back(last);
}

// With cells, the engine reads a sequence from its first token if its state was made otherwise.
bool JobScheduler::continues_base(const Run& run) const {
  return run.base && (cell_ == 0 || run.base->cells == describe_cells(engine_.model()));
}

bool JobScheduler::base_covers(const Run& run, int64_t cut) const {
  return continues_base(run) && run.base->seen() >= (cell_ > 0 ? cut / cell_ * cell_ : cut);
}

int64_t JobScheduler::add_sequence(const Run& run, std::vector<int64_t> ids, const SequenceOptions& options) {
  if (!run.base) return engine_.add(std::move(ids), options);
  return engine_.add(SequenceState{std::move(ids), run.base->state, run.base->cells}, options);
}

void JobScheduler::start_prompt_stage(const Unit& unit, Run& run) {
  const bool scores = run.job.prompt_log_probabilities;
  while (run.next_cut < run.cuts.size() && !scores && base_covers(run, run.cuts[run.next_cut])) ++run.next_cut;
  if (run.next_cut == run.cuts.size()) return finish_prompt(unit, run);
  SequenceOptions options;
  options.max_tokens = 0;
  options.keep_state = true;
  options.scores = scores;
  options.first_scored = run.first_reported();
  options.top_log_probabilities = run.job.top_log_probabilities;
  const auto end = run.ids.begin() + run.cuts[run.next_cut] + 1;
  sequences_.emplace(add_sequence(run, {run.ids.begin(), end}, options), unit);
}

// No stage is left: the choices begin.
void JobScheduler::finish_prompt(const Unit& unit, Run& run) {
  if (run.reads_all) {
    if (run.base->ids != run.ids)  // a state of the cache or of the job covers the prompt
      run.base = std::make_shared<const SequenceState>(SequenceState{run.ids, run.base->state, run.base->cells});
    report_prompt(run);
  }
  if (run.job.max_tokens > 0) {
    for (int64_t c = 1; c < run.job.choices; ++c) units_.push_back({Unit::Kind::choice, unit.job, c});
    return start_choice({Unit::Kind::choice, unit.job, 0}, run);
  }
  const int64_t choices = run.job.choices;
  for (int64_t c = 0; c < choices; ++c)  // the last one ends the job
    end_choice({Unit::Kind::choice, unit.job, c}, run, "", run.job.keep_end_state ? run.base : nullptr);
}

void JobScheduler::start_choice(const Unit& unit, Run& run) {
  const GenerationJob& job = run.job;
  SequenceOptions options;
  options.sampling = job.sampling;
  options.sampling.seed = choice_seed(job.sampling.seed, unit.choice);
  options.max_tokens = job.max_tokens;
  options.stop_tokens = job.stop_tokens;
  if (const auto end = tokenizer_.end_of_text(); end && !job.ignore_end_of_text) options.stop_tokens.push_back(*end);
  options.allowed = job.allowed;
  options.keep_state = run.keeps_end();
  if (wants_log_probabilities(job)) options.top_log_probabilities = std::max<int64_t>(1, job.top_log_probabilities);
  options.scores = job.prompt_log_probabilities && !run.reads_all;
  options.first_scored = run.first_reported();
  sequences_.emplace(add_sequence(run, run.ids, options), unit);
}

// A state cannot be rolled back to the end of the returned text: the text is read once more, from the end of the prompt.
void JobScheduler::start_end_state(const Unit& unit, Run& run) {
  std::vector<int64_t> ids = run.ids;
  const std::vector<int64_t> kept = ids_of_text(tokenizer_, run.choices.at(static_cast<size_t>(unit.choice)).out);
  ids.insert(ids.end(), kept.begin(), kept.end());
  SequenceOptions options;
  options.max_tokens = 0;
  options.keep_state = true;
  sequences_.emplace(add_sequence(run, std::move(ids), options), unit);
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

void JobScheduler::insert_prefix(const Run& run, const SharedState& state) {
  try {
    prefixes_->insert(run.job.owner, state);
  } catch (const std::exception& error) {
    log_error(run.job.request_id + ": prefix cache: " + error.what());
  }
}

void JobScheduler::finish_prompt_stage(const Unit& unit, Run& run, int64_t sequence) {
  const int64_t cut = run.cuts[run.next_cut++];
  if (run.job.prompt_log_probabilities) keep_scores(run, sequence);
  run.base = take_state(sequence);
  if (std::find(run.plan.cuts.begin(), run.plan.cuts.end(), cut) != run.plan.cuts.end()) insert_prefix(run, run.base);
  if (run.next_cut == run.cuts.size() && run.reads_all) report_prompt(run);
  units_.push_front(unit);
}

void JobScheduler::keep_scores(Run& run, int64_t sequence) const {
  const auto prompt = static_cast<int64_t>(run.ids.size());
  const std::vector<float>& scores = engine_.scores(sequence);
  const int64_t seen = continues_base(run) ? run.base->seen() : 0;
  const int64_t first = std::max(seen + 1, run.first_reported());
  const int64_t count = std::clamp<int64_t>(prompt - first, 0, static_cast<int64_t>(scores.size()));
  run.first_scored = first;
  run.scores.clear();
  run.scores.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto top = run.job.top_log_probabilities > 0 ? engine_.top_scores(sequence, at) : std::span<const TokenProbability>();
    run.scores.push_back(token_score(run.job, run.ids[static_cast<size_t>(first + i)], scores[at], top));
  }
}

void JobScheduler::report_prompt(Run& run) {
  if (std::exchange(run.prompt_reported, true)) return;
  const auto prompt = static_cast<int64_t>(run.ids.size());
  metrics_.add_prompt(prompt, run.cached_tokens);
  PromptRead read;
  read.prompt_tokens = prompt;
  read.cached_tokens = run.cached_tokens;
  if (!run.scores.empty()) read.first_scored = run.first_scored - (prompt - static_cast<int64_t>(run.job.ids.size()));
  read.scores = std::move(run.scores);
  if (run.job.keep_prompt_state) read.state = run.base;
  call_event(run.job.request_id, run.job.events.prompt_read, std::move(read));
}

void JobScheduler::take_token(const Unit& unit, Run& run, const Engine::Output& output) {
  if (!run.prompt_reported) {
    if (run.job.prompt_log_probabilities) keep_scores(run, output.sequence);
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
    if (output.finish != Finish::stop) piece.text = choice.stream.push(output.token);
    piece.tokens.push_back(token_score(run.job, output.token, output.log_probability, output.top));
    choice.out.text += piece.text;
    call_event(run.job.request_id, run.job.events.piece, std::move(piece));
  }
  if (output.finish != Finish::none || choice.stream.stopped()) finish_choice(unit, run, output);
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
    if (run.plan.keep_end) insert_prefix(run, state);
  } else {
    engine_.remove(output.sequence);
    sequences_.erase(output.sequence);
  }
  if (!run.job.keep_end_state || output.finish == Finish::not_finite) return end_choice(unit, run, rest, nullptr);
  const std::vector<int64_t> text_ids = ids_of_text(tokenizer_, choice.out);
  if (text_ids.empty()) return end_choice(unit, run, rest, run.base);
  if (state && text_ids == choice.out.ids) return end_choice(unit, run, rest, state);
  choice.rest = rest;
  units_.push_front({Unit::Kind::end_state, unit.job, unit.choice});
}

// `rest`: the text that was held back until the end.
void JobScheduler::end_choice(const Unit& unit, Run& run, std::string rest, SharedState state) {
  const GeneratedText& out = run.choices[static_cast<size_t>(unit.choice)].out;
  ChoiceEnd end{unit.choice, std::move(rest), out.finish_reason, static_cast<int64_t>(out.ids.size()), std::move(state)};
  call_event(run.job.request_id, run.job.events.choice_ended, std::move(end));
  if (++run.ended < run.job.choices) return;
  metrics_.job_succeeded(seconds_between(run.submitted, Clock::now()));
  const std::unique_ptr<Run> ended = std::move(runs_.at(unit.job));
  runs_.erase(unit.job);
  call_event(ended->job.request_id, ended->job.events.done);
}

}  // namespace based

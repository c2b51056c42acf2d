// An engine and a scheduler of jobs in the thread of a test, and the events of the jobs.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "based/generate/cells.h"
#include "based/serve/service/job_scheduler.h"
#include "tests/generate/texts.h"

namespace based {

// The events of one job.
struct Heard {
  PromptRead prompt;
  int prompts = 0, done = 0, failed = 0, status = 0;
  std::map<int64_t, std::string> texts, reasons;
  std::map<int64_t, std::vector<int64_t>> ids;
  std::map<int64_t, std::vector<float>> log_probabilities;
  std::map<int64_t, std::shared_ptr<const SequenceState>> states;
};

inline JobEvents events_into(Heard& heard) {
  JobEvents events;
  events.prompt_read = [&heard](PromptRead prompt) {
    heard.prompt = std::move(prompt);
    ++heard.prompts;
  };
  events.piece = [&heard](const ChoicePiece& piece) {
    heard.texts[piece.choice] += piece.text;
    for (const TokenScore& token : piece.tokens) {
      heard.ids[piece.choice].push_back(token.id);
      heard.log_probabilities[piece.choice].push_back(token.log_probability);
    }
  };
  events.choice_ended = [&heard](const ChoiceEnd& end) {
    heard.texts[end.choice] += end.text;
    heard.reasons[end.choice] = end.finish_reason;
    heard.states[end.choice] = end.state;
  };
  events.done = [&heard] { ++heard.done; };
  events.failed = [&heard](const ApiError& error) {
    ++heard.failed;
    heard.status = error.status();
  };
  return events;
}

// An engine of a tiny model and a scheduler, in this thread.
class Scheduled {
 public:
  explicit Scheduled(EngineOptions options = {.slots = 2, .prefill_tokens = 16}, PrefixSource* prefixes = nullptr, int64_t slice_tokens = 0,
                     int64_t parked_bytes = int64_t{1} << 30)
      : model_(distinct_model(torch::kCPU)),
        engine_(*model_, options),
        scheduler_(engine_, tokenizer_, {options.decode.invariant ? cell_tokens(torch::kCPU) : 0, slice_tokens, parked_bytes, prefixes},
                   metrics_) {}

  // `request`: the jobs of one request have the same number; −1: a request of its own.
  Heard& add(GenerationJob job, JobScheduler::JobId request = -1) {
    Heard& heard = heard_.emplace_back();
    job.events = events_into(heard);
    const auto id = static_cast<JobScheduler::JobId>(heard_.size());
    scheduler_.add(id, request < 0 ? id : request, std::move(job), JobScheduler::Clock::now());
    return heard;
  }
  void finish() {
    for (int i = 0; i < 10000 && scheduler_.has_work(); ++i) scheduler_.step();
  }
  // Steps until `done()`; false if that does not happen.
  template <class Done>
  bool step_until(const Done& done) {
    for (int i = 0; i < 10000 && !done(); ++i) scheduler_.step();
    return done();
  }
  Heard run(GenerationJob job) {
    Heard& heard = add(std::move(job));
    finish();
    return heard;
  }

  LanguageModel& model() { return *model_; }
  Engine& engine() { return engine_; }
  JobScheduler& scheduler() { return scheduler_; }
  ServiceMetrics& metrics() { return metrics_; }

 private:
  std::shared_ptr<LanguageModel> model_;
  ByteTokenizer tokenizer_;
  ServiceMetrics metrics_;
  Engine engine_;
  JobScheduler scheduler_;
  std::deque<Heard> heard_;
};

inline GenerationJob job_of(std::vector<int64_t> ids, int64_t max_tokens, SamplingOptions sampling = kGreedy) {
  GenerationJob job;
  job.ids = std::move(ids);
  job.max_tokens = max_tokens;
  job.sampling = std::move(sampling);
  job.ignore_end_of_text = true;
  return job;
}

}  // namespace based

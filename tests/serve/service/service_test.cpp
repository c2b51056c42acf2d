#include "based/serve/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "based/generate/cells.h"
#include "based/serve/service/health.h"
#include "based/serve/service/job_scheduler.h"
#include "tests/generate/texts.h"

namespace based {
namespace service_test {

using testing::ElementsAre;
using testing::HasSubstr;

// The events of one job.
struct Heard {
  PromptRead prompt;
  int prompts = 0, done = 0, failed = 0, status = 0;
  std::map<int64_t, std::string> texts, reasons;
  std::map<int64_t, std::vector<int64_t>> ids;
  std::map<int64_t, std::vector<float>> log_probabilities;
  std::map<int64_t, std::shared_ptr<const SequenceState>> states;
};

JobEvents events_into(Heard& heard) {
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
  explicit Scheduled(EngineOptions options = {.slots = 2, .prefill_tokens = 16}, PrefixSource* prefixes = nullptr)
      : model_(distinct_model(torch::kCPU)),
        engine_(*model_, options),
        scheduler_(engine_, tokenizer_, options.decode.invariant ? cell_tokens(torch::kCPU) : 0, prefixes, metrics_) {}

  Heard& add(GenerationJob job) {
    Heard& heard = heard_.emplace_back();
    job.events = events_into(heard);
    scheduler_.add(static_cast<JobScheduler::JobId>(heard_.size()), std::move(job), JobScheduler::Clock::now());
    return heard;
  }
  void finish() {
    for (int i = 0; i < 10000 && !scheduler_.idle(); ++i) scheduler_.step();
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

GenerationJob job_of(std::vector<int64_t> ids, int64_t max_tokens, SamplingOptions sampling = kGreedy) {
  GenerationJob job;
  job.ids = std::move(ids);
  job.max_tokens = max_tokens;
  job.sampling = std::move(sampling);
  job.ignore_end_of_text = true;
  return job;
}

TEST(JobScheduler, TokensAreThoseOfTheModelAloneInAnyCompany) {
  Scheduled scheduled({.slots = 3, .prefill_tokens = 16});
  std::vector<Heard*> heard;
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < 7; ++i) {
    prompts.push_back(some_text(1 + 23 * i % 60, i));
    heard.push_back(&scheduled.add(job_of(prompts.back(), 5 + i)));
  }
  EXPECT_EQ(scheduled.scheduler().waiting_jobs(), 7);
  scheduled.finish();
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(heard[i]->ids[0], greedy_text(scheduled.model(), prompts[i], 5 + static_cast<int64_t>(i))) << i;
    EXPECT_EQ(heard[i]->reasons[0], "length");
    EXPECT_EQ(heard[i]->prompts, 1);
    EXPECT_EQ(heard[i]->prompt.prompt_tokens, static_cast<int64_t>(prompts[i].size()));
    EXPECT_EQ(heard[i]->done, 1);
  }
  EXPECT_EQ(scheduled.engine().free_slots(), 3);
  EXPECT_THAT(scheduled.metrics().text(), HasSubstr("request_success_total 7"));
}

// More choices than slots: the prompt is read once, and each choice has its own draw.
TEST(JobScheduler, ChoicesForkFromOnePrompt) {
  Scheduled scheduled;
  const auto prompt = some_text(40, 3);
  SamplingOptions hot;
  hot.temperature = 5;  // the model's weights are large
  hot.seed = 7;
  GenerationJob job = job_of(prompt, 12, hot);
  job.choices = 9;
  const Heard heard = scheduled.run(job);
  ASSERT_EQ(heard.ids.size(), 9u);
  std::set<std::vector<int64_t>> different;
  for (int64_t c = 0; c < 9; ++c) {
    SamplingOptions sampling = hot;
    sampling.seed = choice_seed(hot.seed, c);
    EXPECT_EQ(heard.ids.at(c), session_text(scheduled.model(), prompt, 12, sampling)) << c;
    different.insert(heard.ids.at(c));
  }
  EXPECT_GT(different.size(), 1u);
  EXPECT_EQ(scheduled.engine().tokens_read(), 39);
}

TEST(JobScheduler, CancellingFreesSlotsWithinAPromptAndWithinTheText) {
  Scheduled scheduled;
  const Heard& reading = scheduled.add(job_of(some_text(2000, 1), 5));
  const Heard& writing = scheduled.add(job_of(some_text(3, 1), 100000));
  const Heard& waiting = scheduled.add(job_of(some_text(3, 1), 5));
  for (int i = 0; i < 200 && scheduled.scheduler().sequences() < 2; ++i) scheduled.scheduler().step();
  const ApiError gone(499, "cancelled", "gone");
  for (JobScheduler::JobId id = 1; id <= 3; ++id) scheduled.scheduler().cancel(id, gone);
  EXPECT_TRUE(scheduled.scheduler().idle());
  EXPECT_EQ(scheduled.engine().free_slots(), 2);
  EXPECT_EQ(scheduled.scheduler().waiting_jobs(), 0);
  for (const Heard* heard : {&reading, &writing, &waiting}) EXPECT_EQ(heard->status, 499);
  EXPECT_EQ(scheduled.run(job_of(some_text(9, 4), 6)).ids[0], greedy_text(scheduled.model(), some_text(9, 4), 6));
}

TEST(JobScheduler, DeadlinesEndJobs) {
  Scheduled scheduled;
  GenerationJob job = job_of(some_text(3, 1), 100000);
  const auto now = JobScheduler::Clock::now();
  job.deadline = now + std::chrono::hours(1);
  const Heard& heard = scheduled.add(std::move(job));
  scheduled.scheduler().step();
  scheduled.scheduler().expire(now);
  EXPECT_EQ(heard.failed, 0);
  scheduled.scheduler().expire(now + std::chrono::hours(2));
  EXPECT_EQ(heard.status, 504);
  EXPECT_EQ(scheduled.engine().free_slots(), 2);
}

TEST(JobScheduler, JobsThatTheEngineRefusesAreBadRequests) {
  Scheduled scheduled;
  EXPECT_EQ(scheduled.run(job_of({1, 999999}, 5)).status, 400);
  EXPECT_EQ(scheduled.run(job_of({-1}, 5)).status, 400);
  EXPECT_EQ(scheduled.run(job_of({1}, 5)).done, 1);
}

// The text ends before the stop string, whose bytes span several tokens of the byte tokenizer.
TEST(JobScheduler, StopStringsEndTheTextAndNeverLeak) {
  Scheduled scheduled;
  const auto prompt = some_text(20, 5);
  const Heard whole = scheduled.run(job_of(prompt, 30, kDrawn));
  const std::string& text = whole.texts.at(0);
  ASSERT_GT(text.size(), 12u);
  GenerationJob job = job_of(prompt, 30, kDrawn);
  job.stops = {text.substr(8, 3)};
  const Heard stopped = scheduled.run(job);
  EXPECT_EQ(stopped.texts.at(0), text.substr(0, text.find(job.stops[0])));
  EXPECT_EQ(stopped.reasons.at(0), "stop");
}

TEST(JobScheduler, StatesAtThePromptAndTheEndContinueTheSameText) {
  Scheduled scheduled;
  const auto prompt = some_text(20, 5);
  GenerationJob first = job_of(prompt, 8, kDrawn);
  first.keep_prompt_state = first.keep_end_state = true;
  Heard heard = scheduled.run(first);
  ASSERT_NE(heard.prompt.state, nullptr);
  EXPECT_EQ(heard.prompt.state->ids, prompt);
  ASSERT_NE(heard.states[0], nullptr);
  std::vector<int64_t> text = prompt;
  text.insert(text.end(), heard.ids[0].begin(), heard.ids[0].end());
  EXPECT_EQ(heard.states[0]->ids, text);

  GenerationJob again = job_of({}, 8, kDrawn);
  again.start = heard.prompt.state;
  EXPECT_EQ(scheduled.run(again).ids[0], heard.ids[0]);
  GenerationJob more = job_of({}, 8, kDrawn);
  more.start = heard.states[0];
  const Heard continued = scheduled.run(more);
  EXPECT_EQ(continued.prompt.cached_tokens, 27);
  const auto whole = session_text(scheduled.model(), prompt, 16, kDrawn);
  EXPECT_EQ(continued.ids.at(0), std::vector<int64_t>(whole.begin() + 8, whole.end()));
}

// The state after a stop holds the returned text only.
TEST(JobScheduler, EndStatesLeaveOutTheStop) {
  Scheduled scheduled;
  const auto prompt = some_text(20, 5);
  const Heard whole = scheduled.run(job_of(prompt, 20, kGreedy));
  GenerationJob job = job_of(prompt, 20, kGreedy);
  job.stop_tokens = {whole.ids.at(0)[6]};
  job.keep_end_state = true;
  const Heard stopped = scheduled.run(job);
  EXPECT_EQ(stopped.reasons.at(0), "stop");
  ASSERT_NE(stopped.states.at(0), nullptr);
  std::vector<int64_t> kept = prompt;
  for (const int64_t id : whole.ids.at(0)) {
    if (id == job.stop_tokens[0]) break;
    kept.push_back(id);
  }
  EXPECT_EQ(stopped.states.at(0)->ids, kept);
}

TEST(JobScheduler, ReadsOnlyThePromptForNoTokens) {
  Scheduled scheduled;
  GenerationJob job = job_of(some_text(20, 5), 0);
  job.choices = 2;
  job.keep_prompt_state = true;
  const Heard heard = scheduled.run(job);
  EXPECT_TRUE(heard.ids.empty());
  EXPECT_NE(heard.prompt.state, nullptr);
  EXPECT_THAT(heard.reasons,
              ElementsAre(std::pair<const int64_t, std::string>(0, "length"), std::pair<const int64_t, std::string>(1, "length")));
  EXPECT_EQ(heard.done, 1);
}

// Prompt and generated tokens have the scores of the parallel form; the list's entry of a token is the same number.
TEST(JobScheduler, ScoresPromptsAndTokens) {
  for (const int64_t choices : {1, 2}) {
    Scheduled scheduled;
    const auto prompt = some_text(30, 5);
    GenerationJob job = job_of(prompt, 1);
    job.choices = choices;
    job.prompt_log_probabilities = true;
    job.top_log_probabilities = 1;
    const Heard heard = scheduled.run(job);
    ASSERT_EQ(heard.prompt.scores.size(), 29u);
    EXPECT_EQ(heard.prompt.first_scored, 1);
    const torch::InferenceMode inference;
    LanguageModel& model = scheduled.model();
    const Tensor hidden = model.forward(torch::tensor(prompt), Sequences::equal(1, 30, torch::kCPU));
    const Tensor expected = model.token_log_probabilities(hidden.narrow(0, 0, 29), torch::tensor(prompt).narrow(0, 1, 29));
    for (int64_t i = 0; i < 29; ++i) {
      const TokenScore& score = heard.prompt.scores[static_cast<size_t>(i)];
      EXPECT_EQ(score.id, prompt[static_cast<size_t>(i) + 1]);
      EXPECT_NEAR(score.log_probability, expected[i].item<double>(), 1e-4);
      ASSERT_EQ(score.top.size(), 1u);
      EXPECT_GE(score.top[0].second, score.log_probability);
    }
    EXPECT_LT(heard.log_probabilities.at(0).at(0), 0);
  }
}

// A cache of one entry: it asks for a state after 24 tokens.
class OneEntry : public PrefixSource {
 public:
  PrefixPlan plan(const std::string& owner, std::span<const int64_t> ids) override {
    PrefixPlan plan;
    if (state && owner == state_owner && ids.size() > 24) plan.state = state;
    if (!state && ids.size() > 24) plan.cuts = {24};
    return plan;
  }
  void insert(const std::string& owner, std::shared_ptr<const SequenceState> added) override {
    state = std::move(added);
    state_owner = owner;
  }
  std::shared_ptr<const SequenceState> state;
  std::string state_owner;
};

TEST(JobScheduler, PrefixesAreReadOnce) {
  OneEntry cache;
  Scheduled scheduled({.slots = 2, .prefill_tokens = 16}, &cache);
  const auto prompt = some_text(50, 5);
  GenerationJob job = job_of(prompt, 6);
  job.owner = "a";
  const Heard cold = scheduled.run(job);
  EXPECT_EQ(cold.prompt.cached_tokens, 0);
  ASSERT_NE(cache.state, nullptr);
  EXPECT_EQ(cache.state->state.position()[0].item<int64_t>(), 24);
  const int64_t before = scheduled.engine().tokens_read();
  const Heard warm = scheduled.run(job);
  EXPECT_EQ(warm.prompt.cached_tokens, 24);
  EXPECT_EQ(scheduled.engine().tokens_read() - before, 25);  // a step reads the last token
  EXPECT_EQ(warm.ids.at(0), cold.ids.at(0));
  EXPECT_EQ(cold.ids.at(0), greedy_text(scheduled.model(), prompt, 6));
}

// An invariant engine: neither company, nor the choices, nor a saved state moves a bit.
TEST(JobScheduler, InvariantBitsDoNotDependOnCompanyOrOnSavedStates) {
  EngineOptions options{.slots = 3, .prefill_tokens = 16};
  options.decode.invariant = true;
  const auto prompt = some_text(150, 5);
  const auto make = [&] {
    GenerationJob job = job_of(prompt, 20, kDrawn);
    job.log_probabilities = true;
    return job;
  };
  Scheduled alone(options);
  const Heard expected = alone.run(make());
  Scheduled crowd(options);
  for (int64_t i = 0; i < 4; ++i) crowd.add(job_of(some_text(30 + i, i), 30, kDrawn));
  GenerationJob forked = make();
  forked.choices = 2;
  forked.keep_prompt_state = true;
  const Heard& heard = crowd.add(std::move(forked));
  crowd.finish();
  EXPECT_EQ(heard.log_probabilities.at(0), expected.log_probabilities.at(0));
  GenerationJob restored = make();
  restored.ids = {};
  restored.start = heard.prompt.state;
  EXPECT_EQ(crowd.run(restored).log_probabilities.at(0), expected.log_probabilities.at(0));
}

// --- the thread

struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0, failed = 0, status = 0;

  JobEvents events() {
    JobEvents events;
    events.done = [this] { add(ended); };
    events.failed = [this](const ApiError& error) {
      status = error.status();
      add(failed);
    };
    return events;
  }
  void add(int& count) {
    const std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
  }
  bool wait(int all) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return ended + failed == all; });
  }
};

struct Served {
  explicit Served(ServiceOptions options) : service(model, options, nullptr, metrics) {}
  TextModel model{std::make_unique<ByteTokenizer>(), distinct_model(torch::kCPU), "hash"};
  ServiceMetrics metrics;
  Service service;
};

TEST(Service, AFullQueueAndADrainingServiceRefuseJobs) {
  Served served({.slots = 1, .max_waiting_jobs = 2});
  Waiter waiter;
  const auto endless = [&] {
    GenerationJob job = job_of(some_text(3, 1), 1000000);
    job.events = waiter.events();
    return job;
  };
  std::vector<Service::JobId> jobs;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    try {
      jobs.push_back(served.service.submit(endless()));
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 429);
      EXPECT_GT(error.retry_after(), 0);
      ++refused;
    }
  }
  EXPECT_GE(refused, 3);
  for (const Service::JobId job : jobs) served.service.cancel(job);
  EXPECT_TRUE(waiter.wait(static_cast<int>(jobs.size())));
  EXPECT_EQ(waiter.status, 499);

  GenerationJob last = job_of(some_text(3, 1), 20);
  last.events = waiter.events();
  served.service.submit(std::move(last));
  served.service.drain(30);
  EXPECT_EQ(waiter.ended, 1);
  try {
    served.service.submit(endless());
    ADD_FAILURE() << "a draining service took a job";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 503);
  }
}

TEST(Service, DrainingCancelsWhatTakesTooLong) {
  Served served({.slots = 1});
  Waiter waiter;
  GenerationJob job = job_of(some_text(3, 1), 10000000);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  served.service.drain(0.05);
  EXPECT_EQ(waiter.failed, 1);
  EXPECT_EQ(waiter.status, 503);
  EXPECT_EQ(served.service.running_jobs(), 0);
}

TEST(Service, TwoHundredAbortedJobsLeaveAllSlotsFree) {
  Served served({.slots = 4});
  Waiter waiter;
  std::vector<Service::JobId> jobs;
  for (int i = 0; i < 200; ++i) {
    GenerationJob job = job_of(some_text(50, i), 1000000);
    job.events = waiter.events();
    jobs.push_back(served.service.submit(std::move(job)));
  }
  for (const Service::JobId job : jobs) served.service.cancel(job);
  ASSERT_TRUE(waiter.wait(200));
  GenerationJob job = job_of(some_text(3, 1), 5);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  ASSERT_TRUE(waiter.wait(201));
  EXPECT_EQ(waiter.ended, 1);
  served.service.drain(30);
  EXPECT_EQ(served.service.free_slots(), 4);
}

TEST(Service, JobsThatCanNeverRunAreRefused) {
  Served served({.slots = 1});
  const auto status_of = [&](auto change) {
    GenerationJob job = job_of(some_text(3, 1), 5);
    change(job);
    try {
      served.service.submit(std::move(job));
    } catch (const ApiError& error) {
      return error.status();
    }
    return 0;
  };
  EXPECT_EQ(status_of([](GenerationJob& job) { job.ids = {}; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.choices = 0; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.max_tokens = -1; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.stops = {""}; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.sampling.temperature = 1e300; }), 400);
  EXPECT_EQ(status_of([](GenerationJob& job) { job.top_log_probabilities = 21; }), 400);
}

TEST(Service, MetricsHaveTheNamesOfOtherEngines) {
  Served served({.slots = 1});
  Waiter waiter;
  HttpRouter router;
  add_health_routes(router, served.service, served.metrics);
  GenerationJob job = job_of(some_text(10, 1), 4);
  job.events = waiter.events();
  served.service.submit(std::move(job));
  ASSERT_TRUE(waiter.wait(1));
  const std::string text = served.metrics.text();
  for (const char* const line : {"prompt_tokens_total 10\n", "generation_tokens_total 4\n", "request_success_total 1\n",
                                 "time_to_first_token_seconds_count 1\n", "inter_token_latency_seconds_count 3\n",
                                 "e2e_request_latency_seconds_count 1\n", "num_requests_running ", "num_requests_waiting ", "slots_free "})
    EXPECT_THAT(text, HasSubstr(line));
}

}  // namespace service_test
}  // namespace based

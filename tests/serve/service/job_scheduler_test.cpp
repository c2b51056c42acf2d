#include "based/serve/service/job_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/serve/service/scheduled.h"

namespace based {
namespace job_scheduler_test {

using testing::ElementsAre;
using testing::HasSubstr;

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

// A cache of one entry: it asks for a state after `cut` tokens. If `is_slow`, it hands the plan over when the test calls `ready`.
class OneEntry : public PrefixSource {
 public:
  std::optional<PrefixPlan> plan(const PrefixRequest& request, Ready when_ready) override {
    PrefixPlan plan;
    if (state && request.owner == state_owner && std::ssize(request.ids) > cut) plan.state = state, plan.scores = scores;
    if (!state && std::ssize(request.ids) > cut) plan.cuts = {cut};
    if (!plan.state || !is_slow) return plan;
    ready = [when_ready, plan] { when_ready(plan); };
    return std::nullopt;
  }
  void insert(const std::string& owner, std::shared_ptr<const SequenceState> added, std::shared_ptr<const PromptScores> of_added) override {
    state = std::move(added);
    scores = std::move(of_added);
    state_owner = owner;
  }
  std::shared_ptr<const SequenceState> state;
  std::shared_ptr<const PromptScores> scores;
  std::string state_owner;
  int64_t cut = 24;
  bool is_slow = false;
  std::function<void()> ready;
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

// While one job's state is read from disk, others are decoded, in all slots.
TEST(JobScheduler, OtherJobsRunWhileAStateIsRead) {
  OneEntry cache;
  Scheduled scheduled({.slots = 1, .prefill_tokens = 16}, &cache);
  const auto prompt = some_text(50, 5);
  const Heard cold = scheduled.run(job_of(prompt, 6));
  cache.is_slow = true;
  const Heard& slow = scheduled.add(job_of(prompt, 6));
  const Heard& other = scheduled.add(job_of(some_text(9, 4), 6));
  scheduled.finish();
  EXPECT_EQ(other.done, 1);
  EXPECT_EQ(slow.prompts, 0);
  EXPECT_FALSE(scheduled.scheduler().idle());
  cache.ready();
  EXPECT_TRUE(scheduled.scheduler().has_work());
  scheduled.finish();
  EXPECT_EQ(slow.prompt.cached_tokens, 24);
  EXPECT_EQ(slow.ids.at(0), cold.ids.at(0));

  const Heard& gone = scheduled.add(job_of(prompt, 6));
  scheduled.scheduler().step();
  scheduled.scheduler().cancel(4, ApiError(499, "cancelled", "gone"));
  cache.ready();
  scheduled.finish();
  EXPECT_EQ(gone.done, 0);
  EXPECT_EQ(gone.failed, 1);
  EXPECT_TRUE(scheduled.scheduler().idle());
}

// Scores before the state's first unread token come from the cache, the others from the model.
TEST(JobScheduler, PromptsAreScoredFromCachedStates) {
  for (const bool invariant : {false, true}) {
    EngineOptions options{.slots = 2, .prefill_tokens = 16};
    options.decode.invariant = invariant;
    OneEntry cache;
    cache.cut = 64;
    Scheduled scheduled(options, &cache), plain(options);
    GenerationJob job = job_of(some_text(150, 5), 2);
    job.prompt_log_probabilities = true;
    job.top_log_probabilities = 2;
    const Heard expected = plain.run(job), cold = scheduled.run(job);
    const Heard warm = scheduled.run(job);
    EXPECT_EQ(cold.prompt.cached_tokens, 0);
    EXPECT_EQ(warm.prompt.cached_tokens, 64);
    for (const Heard* heard : {&cold, &warm}) {
      ASSERT_EQ(heard->prompt.scores.size(), 149u);
      EXPECT_EQ(heard->prompt.first_scored, 1);
      EXPECT_EQ(heard->ids.at(0), expected.ids.at(0));
      for (size_t i = 0; i < 149; ++i) {
        const TokenScore &score = heard->prompt.scores[i], &wanted = expected.prompt.scores[i];
        ASSERT_EQ(score.id, job.ids[i + 1]);
        ASSERT_NEAR(score.log_probability, wanted.log_probability, invariant ? 0 : 1e-4) << i;
        ASSERT_EQ(score.top.size(), 2u);
        ASSERT_NEAR(score.top[0].second, wanted.top[0].second, invariant ? 0 : 1e-4) << i;
      }
    }
  }
}

// One client's requests of many jobs, or many requests, do not keep another's waiting.
TEST(JobScheduler, SlotsGoToClientsAndRequestsInTurn) {
  Scheduled scheduled({.slots = 1, .prefill_tokens = 16});
  const auto add = [&](const std::string& client, JobScheduler::JobId request) {
    GenerationJob job = job_of(some_text(3, 1), 2);
    job.client = client;
    return &scheduled.add(std::move(job), request);
  };
  std::vector<Heard*> batch, single;
  for (int i = 0; i < 20; ++i) batch.push_back(add("a", 100));  // one request of 20 jobs
  for (int i = 0; i < 20; ++i) single.push_back(add("a", 200 + i));
  Heard* const other = add("b", 300);
  const auto ended = [](const std::vector<Heard*>& jobs) {
    return std::count_if(jobs.begin(), jobs.end(), [](const Heard* heard) { return heard->done > 0; });
  };
  ASSERT_TRUE(scheduled.step_until([&] { return other->done > 0; }));
  EXPECT_LE(ended(batch) + ended(single), 1) << "the clients take turns";
  ASSERT_TRUE(scheduled.step_until([&] { return ended(single) == 20; }));
  EXPECT_LE(ended(batch), 2) << "the requests of a client take turns";
  scheduled.finish();
  EXPECT_EQ(ended(batch), 20);
}

// A long text gives its slot to a waiting request after a slice, and is the same text.
TEST(JobScheduler, LongTextsGiveTheirSlotsBack) {
  for (const bool invariant : {false, true}) {
    EngineOptions options{.slots = 1, .prefill_tokens = 16};
    options.decode.invariant = invariant;
    Scheduled alone(options), shared(options, nullptr, /*slice_tokens=*/64);
    GenerationJob job = job_of(some_text(40, 5), 150, kDrawn);
    job.sampling.presence_penalty = 0.5;
    job.log_probabilities = job.keep_end_state = true;
    const Heard expected = alone.run(job);
    const Heard& longer = shared.add(job);
    shared.scheduler().step();
    const Heard& shorter = shared.add(job_of(some_text(9, 4), 6));
    ASSERT_TRUE(shared.step_until([&] { return shorter.done > 0; }));
    EXPECT_EQ(longer.done, 0);
    EXPECT_LE(longer.ids.at(0).size(), 64u);
    shared.finish();
    EXPECT_EQ(longer.ids.at(0), expected.ids.at(0));
    EXPECT_EQ(longer.texts.at(0), expected.texts.at(0));
    EXPECT_EQ(longer.reasons.at(0), "length");
    EXPECT_EQ(longer.states.at(0)->ids, expected.states.at(0)->ids);
    if (invariant) {
      EXPECT_EQ(longer.log_probabilities.at(0), expected.log_probabilities.at(0));
    }
  }
}

// Requests of many choices compete for one slot: each has at most one state outside the slot, and the states have a budget.
TEST(JobScheduler, StatesOutsideSlotsAreFew) {
  for (const int64_t budget : {int64_t{1} << 30, int64_t{1}}) {
    Scheduled scheduled({.slots = 1, .prefill_tokens = 16}, nullptr, /*slice_tokens=*/4, budget);
    const int64_t bytes = scheduled.model().make_state(1).bytes();
    std::vector<const Heard*> all;
    for (int i = 0; i < 3; ++i) {
      GenerationJob job = job_of(some_text(9, i), 10);
      job.choices = 5;
      all.push_back(&scheduled.add(job));
    }
    int64_t most = 0, least_waiting = 3;
    while (!scheduled.scheduler().idle()) {
      scheduled.scheduler().step();
      most = std::max(most, scheduled.scheduler().parked_bytes());
      if (all[0]->done + all[1]->done + all[2]->done == 0) least_waiting = std::min(least_waiting, scheduled.scheduler().waiting_jobs());
    }
    EXPECT_LE(most, 3 * bytes);
    EXPECT_EQ(most > 0, budget > 1);
    EXPECT_EQ(least_waiting, 2) << "requests without a slot wait, although they have begun";
    EXPECT_EQ(scheduled.scheduler().parked_bytes(), 0);
    for (const Heard* heard : all) EXPECT_EQ(heard->ids.size(), 5u);
  }
  Scheduled cancelled({.slots = 1, .prefill_tokens = 16}, nullptr, /*slice_tokens=*/4);
  for (int i = 0; i < 3; ++i) cancelled.add(job_of(some_text(9, i), 1000));
  ASSERT_TRUE(cancelled.step_until([&] { return cancelled.scheduler().parked_bytes() > 0; }));
  cancelled.scheduler().cancel_all(ApiError(499, "cancelled", "gone"));
  EXPECT_EQ(cancelled.scheduler().parked_bytes(), 0);
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

}  // namespace job_scheduler_test
}  // namespace based

#include "based/serve/states/prefix_cache.h"

#include <gtest/gtest.h>

#include <future>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/generate/cells.h"
#include "based/serve/service/metrics.h"
#include "based/serve/service/service.h"
#include "tests/core/temporary_folder.h"
#include "tests/serve/states/states.h"

namespace based {
namespace prefix_cache_test {

using Ids = std::vector<int64_t>;

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// `length` tokens, the first of which is `first`.
Ids tail(int64_t length, int64_t first) { return some_text(length, first); }

TextModel text_model(std::shared_ptr<LanguageModel> model) {
  TextModel text;
  text.tokenizer = std::make_unique<ByteTokenizer>();
  text.model = std::move(model);
  text.hash = kModelHash;
  return text;
}

struct Answer {
  int64_t computed = 0;  // tokens of the prompt that no state had read
  Ids ids;
  std::vector<float> log_probabilities;
  std::vector<TokenScore> scores;  // the prompt's
};

// A service with a prefix cache, or without one.
class CachedService {
 public:
  CachedService(const TextModel& model, const PrefixCacheOptions* options, bool invariant = false, const std::string& folder = "")
      : cache_(options == nullptr ? nullptr
                                  : std::make_shared<PrefixCache>(*model.model, model.hash, *options, folder,
                                                                  invariant ? describe_cells(*model.model) : "")),
        service_(model, {.slots = 2, .invariant = invariant}, cache_, metrics_) {}

  PrefixCache& cache() { return *cache_; }

  Answer ask(const Ids& ids, int64_t tokens = 1, const std::string& owner = "a", bool use_prefixes = true) {
    GenerationJob job;
    job.owner = owner;
    job.ids = ids;
    job.max_tokens = tokens;
    job.use_prefixes = use_prefixes;
    return run(std::move(job));
  }
  // Also the scores of the prompt, with the `top` most likely tokens at each position.
  Answer score(const Ids& ids, int64_t top) {
    GenerationJob job;
    job.owner = "a";
    job.ids = ids;
    job.max_tokens = 1;
    job.prompt_log_probabilities = true;
    job.top_log_probabilities = top;
    return run(std::move(job));
  }
  Answer run(GenerationJob job) {
    Answer answer;
    std::promise<std::string> ended;
    job.sampling = kGreedy;
    job.ignore_end_of_text = true;
    job.log_probabilities = true;
    job.events.prompt_read = [&](const PromptRead& read) {
      answer.computed = read.prompt_tokens - read.cached_tokens;
      answer.scores = read.scores;
    };
    job.events.piece = [&](const ChoicePiece& piece) {
      for (const TokenScore& token : piece.tokens)
        answer.ids.push_back(token.id), answer.log_probabilities.push_back(token.log_probability);
    };
    job.events.choice_ended = [](const ChoiceEnd&) {};
    job.events.done = [&] { ended.set_value(""); };
    job.events.failed = [&](const ApiError& error) { ended.set_value(error.what()); };
    service_.submit(std::move(job));
    EXPECT_EQ(ended.get_future().get(), "");
    return answer;
  }
  int64_t computed(const Ids& ids) { return ask(ids).computed; }

 private:
  std::shared_ptr<PrefixCache> cache_;
  ServiceMetrics metrics_;
  Service service_;
};

PrefixCacheOptions without_intervals() {
  PrefixCacheOptions options;
  options.interval = 0;
  options.computed_tokens = 0;
  return options;
}

class PrefixCaches : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = std::make_unique<TextModel>(text_model(distinct_model(torch::kCPU))); }
  static void TearDownTestSuite() { model_.reset(); }
  static std::unique_ptr<TextModel> model_;
};
std::unique_ptr<TextModel> PrefixCaches::model_;

TEST_F(PrefixCaches, ReadTheSamePromptOnceAndContinueAnswers) {
  const PrefixCacheOptions options = without_intervals();
  CachedService service(*model_, &options);
  const Ids prompt = some_text(100, 3);
  const Answer first = service.ask(prompt, 4), again = service.ask(prompt, 4);
  EXPECT_EQ(first.computed, 100);
  EXPECT_EQ(again.computed, 1) << "the last token is always read";
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_EQ(first.ids, greedy_text(*model_->model, prompt, 4));
  // The second turn: the first one, its answer and 20 tokens. The state after the answer lacks the answer's last token.
  const Ids turn = joined(joined(prompt, first.ids), tail(20, 9));
  const Answer second = service.ask(turn, 4);
  EXPECT_EQ(second.computed, 21);
  EXPECT_EQ(second.ids, greedy_text(*model_->model, turn, 4));
}

TEST_F(PrefixCaches, LearnWherePromptsDiverge) {
  const PrefixCacheOptions options = without_intervals();
  CachedService service(*model_, &options);
  const Ids prompt = some_text(100, 3), half(prompt.begin(), prompt.begin() + 50);
  EXPECT_EQ(service.computed(prompt), 100);
  EXPECT_EQ(service.computed(joined(half, tail(50, 200))), 100) << "the state at the divergence is taken now";
  EXPECT_EQ(service.computed(joined(half, tail(50, 201))), 50);
  EXPECT_EQ(service.computed(prompt), 1) << "the first prompt's own state is still there";
}

TEST_F(PrefixCaches, ReadExactlyTheTailOfASharedPrefix) {
  const PrefixCacheOptions plain = without_intervals();
  PrefixCacheOptions intervals = plain;
  intervals.interval = 64;
  CachedService learning(*model_, &plain), regular(*model_, &intervals);
  const Ids shared = some_text(150, 3);
  for (int64_t i = 0; i < 8; ++i) {
    const Ids prompt = joined(shared, tail(20, 60 + i));
    const Answer answer = learning.ask(prompt, 3);
    EXPECT_EQ(answer.computed, i < 2 ? 170 : 20) << i;
    EXPECT_EQ(answer.ids, greedy_text(*model_->model, prompt, 3)) << i;
    EXPECT_EQ(regular.computed(prompt), i == 0 ? 170 : i == 1 ? 170 - 128 : 20) << i;
  }
  const PrefixCacheMetrics metrics = learning.cache().metrics();
  EXPECT_EQ(metrics.hits, 6);
  EXPECT_EQ(metrics.misses, 2);
  EXPECT_EQ(metrics.tokens_saved, 6 * 150);
  EXPECT_EQ(metrics.prompt_tokens, 8 * 169);
}

TEST_F(PrefixCaches, TakeNoStatesOfShortPrompts) {
  PrefixCacheOptions options = without_intervals();
  options.ends = 0;
  CachedService service(*model_, &options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(service.computed(some_text(16, 3)), 16);
  EXPECT_EQ(service.cache().metrics().entries, 0) << "15 tokens are fewer than least_tokens";
  EXPECT_EQ(service.computed(some_text(17, 3)), 17);
  EXPECT_EQ(service.computed(some_text(17, 3)), 1);
}

// A state costs a step, which is a large part of a short prompt's time.
TEST_F(PrefixCaches, TakeStatesOfShortPromptsOnlyIfTheyRecur) {
  PrefixCacheOptions options;
  options.interval = 16;
  options.computed_tokens = 64;
  CachedService service(*model_, &options);
  const Ids brief = some_text(60, 3), whole = some_text(100, 200);
  for (const int64_t computed : {60, 60, 1}) EXPECT_EQ(service.computed(brief), computed);
  for (const int64_t computed : {100, 1}) EXPECT_EQ(service.computed(whole), computed);
  GenerationJob job;
  job.owner = "a";
  job.ids = some_text(60, 100);
  job.boundaries = {30};
  EXPECT_EQ(service.run(job).computed, 60);
  job.ids = joined({job.ids.begin(), job.ids.begin() + 30}, tail(30, 61));
  EXPECT_EQ(service.run(job).computed, 60);
}

TEST(PrefixCacheOptions, EndsIsOneOfThree) {
  for (const int64_t ends : {-2, -1, 0, 1, 2}) {
    PrefixCacheOptions options;
    options.ends = ends;
    if (ends >= -1 && ends <= 1)
      EXPECT_NO_THROW(check_prefix_cache_options(options)) << ends;
    else
      EXPECT_THROW(check_prefix_cache_options(options), UsageError) << ends;
  }
}

// A copy of a state is a large part of a short request's time. One step counts as 10 tokens of a prompt.
TEST_F(PrefixCaches, KeepTheEndsOfShortTextsOnlyOfKnownPrompts) {
  PrefixCacheOptions options = without_intervals();
  options.computed_tokens = 100;
  PrefixCache cache(*model_->model, kModelHash, options);
  const auto keeps_end = [&](const Ids& ids, int64_t max_tokens) {
    PrefixRequest request{"a", ids};
    request.max_tokens = max_tokens;
    return cache.plan(request, [](const PrefixPlan&) {})->keep_end;
  };
  EXPECT_FALSE(keeps_end(some_text(40, 3), 5));
  EXPECT_TRUE(keeps_end(some_text(40, 100), 6));
  EXPECT_TRUE(keeps_end(joined(some_text(40, 3), tail(10, 9)), 1)) << "it continues a prompt";
}

TEST_F(PrefixCaches, AreSeparateForOwnersUnlessShared) {
  PrefixCacheOptions options = without_intervals();
  const Ids prompt = some_text(100, 3);
  for (const bool shared : {false, true}) {
    options.shared = shared;
    CachedService service(*model_, &options);
    EXPECT_EQ(service.ask(prompt, 1, "a").computed, 100);
    EXPECT_EQ(service.ask(prompt, 1, "b").computed, shared ? 1 : 100);
    EXPECT_EQ(service.ask(prompt, 1, "a", /*use_prefixes=*/false).computed, 100);
  }
}

TEST_F(PrefixCaches, GiveInvariantServicesTheBitsOfPromptsThatWereNeverCached) {
  PrefixCacheOptions options = without_intervals();
  CachedService plain(*model_, nullptr, /*invariant=*/true), cached(*model_, &options, /*invariant=*/true);
  const Ids shared = some_text(150, 3);
  std::vector<int64_t> computed;
  for (const int64_t first : {60, 61, 62, 62}) {
    const Ids prompt = joined(shared, tail(60, first));
    const Answer expected = plain.ask(prompt, 70), answer = cached.ask(prompt, 70);
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.log_probabilities, expected.log_probabilities);
    computed.push_back(answer.computed);
  }
  // States are at multiples of 64 tokens: 128 of the 150 shared ones, and 192 of the 209 before the last one.
  EXPECT_EQ(computed, (Ids{210, 210, 82, 18}));
}

TEST(PrefixCachesOfMixers, GiveTheSameBits) {
  for (const MixerInfo& info : mixers()) {
    if (!info.recurrent) continue;
    ModelConfig config;
    config.vocab_size = 257, config.d_model = 64, config.mlp_width = 96, config.layers = {std::string(info.name), std::string(info.name)};
    std::shared_ptr<LanguageModel> made = make_model(config, 11);
    made->eval();
    const TextModel model = text_model(made);
    const PrefixCacheOptions options = without_intervals();
    CachedService plain(model, nullptr, /*invariant=*/true), cached(model, &options, /*invariant=*/true);
    const Ids prompt = some_text(100, 3);
    const Answer expected = plain.ask(prompt, 3);
    EXPECT_EQ(cached.ask(prompt, 3).computed, 100) << info.name;
    const Answer answer = cached.ask(prompt, 3);
    EXPECT_EQ(answer.computed, 36) << info.name;
    EXPECT_EQ(answer.ids, expected.ids) << info.name;
    EXPECT_EQ(answer.log_probabilities, expected.log_probabilities) << info.name;
  }
}

bool equal_scores(const Answer& a, const Answer& b) {
  return std::equal(a.scores.begin(), a.scores.end(), b.scores.begin(), b.scores.end(), [](const TokenScore& one, const TokenScore& other) {
    return one.id == other.id && one.log_probability == other.log_probability && one.top == other.top;
  });
}

// Requests of evaluations: one context and several continuations, of which some have one token. The scores have the same bits as without a
// cache.
TEST_F(PrefixCaches, ScorePromptsFromTheSharedPrefixOn) {
  const PrefixCacheOptions options = without_intervals();
  CachedService plain(*model_, nullptr, /*invariant=*/true), cached(*model_, &options, /*invariant=*/true);
  const Ids context = some_text(150, 3);
  std::vector<int64_t> computed;
  const auto check = [&](const Ids& prompt, int64_t top) {
    const Answer expected = plain.score(prompt, top), answer = cached.score(prompt, top);
    ASSERT_EQ(answer.scores.size(), prompt.size() - 1);
    EXPECT_TRUE(equal_scores(answer, expected));
    EXPECT_EQ(answer.log_probabilities, expected.log_probabilities);
    computed.push_back(answer.computed);
  };
  check(joined(context, {60}), 1);
  check(joined(context, {61}), 1);
  check(joined(context, tail(30, 62)), 1);
  check(joined(context, tail(30, 63)), 0);  // fewer most likely tokens than are stored
  check(joined(context, tail(30, 64)), 3);  // more
  check(joined(context, tail(30, 65)), 2);
  // States are at multiples of 64 tokens.
  EXPECT_EQ(computed, (Ids{151, 151 - 128, 180 - 128, 180 - 128, 180, 180 - 128}));
}

// Without cells, a scored prompt computes its own tail and one more token, whose predecessor's logits a state does not have.
TEST_F(PrefixCaches, ScoredPromptsComputeOneTokenMoreThanTheTail) {
  const PrefixCacheOptions options = without_intervals();
  CachedService service(*model_, &options);
  const Ids context = some_text(100, 3);
  EXPECT_EQ(service.computed(context), 100) << "leaves states without scores";
  EXPECT_EQ(service.score(joined(context, tail(20, 60)), 1).computed, 120);
  EXPECT_EQ(service.score(joined(context, tail(20, 61)), 1).computed, 21);
  EXPECT_EQ(service.computed(joined(context, tail(20, 62))), 20) << "other prompts use all states";
}

TEST_F(PrefixCaches, KeepStatesAtBoundariesForTheSecondPrompt) {
  const PrefixCacheOptions options = without_intervals();
  CachedService service(*model_, &options);
  const Ids system = some_text(70, 3);
  GenerationJob job;
  job.owner = "a";
  job.ids = joined(system, tail(30, 60));
  job.boundaries = {70};
  EXPECT_EQ(service.run(job).computed, 100);
  job.ids = joined(system, tail(30, 61));
  EXPECT_EQ(service.run(job).computed, 30);
}

// However long a prompt is, it leaves at most 16 states at regular intervals, so that it does not evict all others.
TEST_F(PrefixCaches, LongPromptsHaveLongerIntervals) {
  PrefixCacheOptions options;
  options.interval = 16;
  options.computed_tokens = 0;
  PrefixCache cache(*model_->model, kModelHash, options);
  const auto cuts_of = [&](int64_t tokens) {
    const Ids ids = some_text(tokens, tokens);
    return cache.plan({"a", ids}, [](const PrefixPlan&) {})->cuts;
  };
  EXPECT_EQ(cuts_of(50), (Ids{16, 32, 49})) << "48 is next to the state at the end";
  EXPECT_LE(cuts_of(1000).size(), 17u);
  EXPECT_EQ(cuts_of(1000).front(), 64);
}

// While a file is read, plans, states and figures of other prompts do not wait for it.
TEST_F(PrefixCaches, ReadFilesWithoutHoldingOthersUp) {
  const TemporaryFolder folder;
  const PrefixCacheOptions options = without_intervals();
  const Ids first = some_text(100, 3), second = some_text(100, 4);
  {
    PrefixCache cache(*model_->model, kModelHash, options, folder.path().string());
    cache.insert("a", state_after(*model_->model, first));
  }
  std::promise<void> slow;
  std::shared_future<void> released = slow.get_future().share();
  const auto read = [&](const std::string& path) {
    released.wait();
    return load_sequence(path, *model_->model, kModelHash);
  };
  PrefixCache cache(*model_->model, kModelHash, options, folder.path().string(), "", read);
  std::promise<PrefixPlan> planned, again;
  EXPECT_EQ(cache.plan({"a", first}, [&](PrefixPlan plan) { planned.set_value(std::move(plan)); }), std::nullopt);
  EXPECT_EQ(cache.plan({"a", first}, [&](PrefixPlan plan) { again.set_value(std::move(plan)); }), std::nullopt);
  EXPECT_TRUE(cache.plan({"a", second}, [](const PrefixPlan&) { ADD_FAILURE(); }).has_value());
  cache.insert("a", state_after(*model_->model, second));
  EXPECT_EQ(cache.metrics().entries, 2);
  slow.set_value();
  for (std::promise<PrefixPlan>* plan : {&planned, &again}) {
    const PrefixPlan got = plan->get_future().get();
    ASSERT_NE(got.state, nullptr);
    EXPECT_EQ(got.state->seen(), 99);
  }
  EXPECT_EQ(cache.metrics().disk_reads, 1) << "the second plan uses what the first one read";
}

// A state that exceeds the memory budget of this process is used, and leaves memory again.
TEST_F(PrefixCaches, UseStatesOnDiskThatAreLargerThanTheMemory) {
  const TemporaryFolder folder;
  PrefixCacheOptions options = without_intervals();
  options.ends = 0;
  const Ids prompt = some_text(100, 3);
  {
    CachedService service(*model_, &options, false, folder.path().string());
    EXPECT_EQ(service.computed(prompt), 100);
  }
  options.memory_bytes = 1000;
  CachedService service(*model_, &options, false, folder.path().string());
  EXPECT_EQ(service.computed(prompt), 1);
  EXPECT_EQ(service.computed(prompt), 1);
  EXPECT_EQ(service.cache().metrics().disk_reads, 2);
}

TEST_F(PrefixCaches, EvictToDiskAndSurviveARestart) {
  const TemporaryFolder folder;
  PrefixCacheOptions options = without_intervals();
  options.ends = 0;
  const Ids first = some_text(100, 3), second = some_text(100, 4);
  // Room for one state of 99 tokens.
  options.memory_bytes = state_after(*model_->model, first)->state.bytes() + 1000;
  {
    CachedService service(*model_, &options, false, folder.path().string());
    EXPECT_EQ(service.computed(first), 100);
    EXPECT_EQ(service.computed(second), 100);
    service.cache().flush();
    const PrefixCacheMetrics metrics = service.cache().metrics();
    EXPECT_EQ(metrics.disk_writes, 1);
    EXPECT_EQ(metrics.entries, 2);
    EXPECT_LE(metrics.memory_bytes, options.memory_bytes);
    EXPECT_EQ(service.computed(first), 1) << "from disk";
    EXPECT_EQ(service.cache().metrics().disk_reads, 1);
  }
  {
    CachedService service(*model_, &options, false, folder.path().string());
    EXPECT_EQ(service.ask(first, 3).ids, greedy_text(*model_->model, first, 3));
    EXPECT_EQ(service.computed(second), 1);
    EXPECT_EQ(service.cache().metrics().hits, 2);
  }
  for (const std::string& name : names_in(folder.path().string()))
    if (name.ends_with(".state")) {
      std::string content = read_file(folder.file(name));
      content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
      write_file_atomic(folder.file(name), content);
    }
  CachedService service(*model_, &options, false, folder.path().string());
  EXPECT_EQ(service.computed(first), 100) << "damaged entries are dropped";
  EXPECT_EQ(service.cache().metrics().damaged, 1);
  EXPECT_EQ(service.computed(first), 1);
}

TEST_F(PrefixCaches, DropEntriesOfOtherModelsAndHalfWrittenOnes) {
  const TemporaryFolder folder;
  const PrefixCacheOptions options = without_intervals();
  const std::string path = folder.path().string();
  {
    PrefixCache cache(*model_->model, kModelHash, options, path);
    cache.insert("a", state_after(*model_->model, some_text(40, 3)));
    cache.insert("a", state_after(*model_->model, some_text(40, 4)));
  }
  EXPECT_EQ(folder.entries(), 4u);
  for (const std::string& name : names_in(path))
    if (name.ends_with(".json")) {
      remove_file(folder.file(name));
      break;
    }
  EXPECT_EQ(PrefixCache(*model_->model, kModelHash, options, path).metrics().entries, 1);
  EXPECT_EQ(PrefixCache(*model_->model, kOtherHash, options, path).metrics().entries, 0);
  EXPECT_EQ(folder.entries(), 0u);
}

}  // namespace prefix_cache_test
}  // namespace based

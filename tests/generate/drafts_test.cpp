// Drafts change the number of steps and nothing else: tokens, log-probabilities and states are compared, bit for bit, with those of an
// engine without drafts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <functional>
#include <set>

#include "based/core/error.h"
#include "based/data/tokenizer.h"
#include "based/generate/drafting.h"
#include "based/generate/text_generator.h"
#include "tests/generate/recorded_on_cpu.h"
#include "tests/generate/texts.h"

namespace based {
namespace drafts_test {

using Ids = std::vector<int64_t>;
using testing::HasSubstr;

// Drafts by a function of the sequence's number, its tokens and the most tokens that are wanted.
class GivenDrafter final : public Drafter {
 public:
  using Draft = std::function<Ids(int64_t sequence, const Ids& tokens, int64_t most)>;
  explicit GivenDrafter(Draft draft) : draft_(std::move(draft)) {}
  void draft(std::vector<Request>& requests) override {
    for (Request& request : requests) request.drafts = draft_(request.sequence, *request.tokens, request.most);
  }
  void forget(int64_t sequence) override { forgotten.push_back(sequence); }
  std::vector<int64_t> forgotten;

 private:
  Draft draft_;
};

// Drafts the tokens that each sequence will have. A draft token is wrong where (index + sequence) % every == 0.
std::shared_ptr<Drafter> drafter_of(const std::map<int64_t, Ids>& texts, int64_t every) {
  return std::make_shared<GivenDrafter>([texts, every](int64_t sequence, const Ids& tokens, int64_t most) {
    const Ids& text = texts.at(sequence);
    Ids drafts;
    for (auto at = static_cast<int64_t>(tokens.size()); static_cast<int64_t>(drafts.size()) < most; ++at) {
      const int64_t right = at < static_cast<int64_t>(text.size()) ? text[static_cast<size_t>(at)] : 0;
      drafts.push_back((at + sequence) % every == 0 ? (right + 1) % 257 : right);
    }
    return drafts;
  });
}

constexpr int64_t kNever = 1 << 30;

EngineOptions with_drafts(EngineOptions options, std::shared_ptr<Drafter> drafter, int64_t most = kMostDraftTokens) {
  options.drafts = {std::move(drafter), most, /*adapts=*/false};
  return options;
}

struct Made {
  std::map<int64_t, Ids> texts;  // each sequence's tokens, with the prompt
  std::map<int64_t, std::vector<float>> log_probabilities;
  std::map<int64_t, Finish> finish;
  std::map<int64_t, SequenceState> states;
  int64_t steps = 0;
  DraftCounts counts;
};

struct Wanted {
  Ids prompt;
  SequenceOptions options;
};

Made generate(LanguageModel& model, const EngineOptions& options, const std::vector<Wanted>& all) {
  Engine engine(model, options);
  Made made;
  for (const Wanted& one : all) {
    SequenceOptions kept = one.options;
    kept.keep_state = true;
    engine.add(one.prompt, kept);
  }
  for (; !engine.idle(); ++made.steps)
    for (const Engine::Output& output : engine.step())
      if (output.token >= 0) made.log_probabilities[output.sequence].push_back(output.log_probability);
  for (int64_t id = 0; id < static_cast<int64_t>(all.size()); ++id) {
    made.texts[id] = engine.text(id);
    made.finish[id] = engine.finish(id);
    made.states.emplace(id, engine.take_state(id));
  }
  made.counts = engine.draft_counts();
  return made;
}

void expect_same_state(const SequenceState& actual, const SequenceState& expected, const std::string& where) {
  EXPECT_EQ(actual.ids, expected.ids) << where;
  const auto a = actual.state.named(), e = expected.state.named();
  ASSERT_EQ(a.size(), e.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i].value, e[i].value)) << where << ": " << a[i].name;
}

void expect_same(const Made& actual, const Made& expected, const std::string& where) {
  EXPECT_EQ(actual.texts, expected.texts) << where;
  EXPECT_EQ(actual.log_probabilities, expected.log_probabilities) << where;
  EXPECT_EQ(actual.finish, expected.finish) << where;
  for (const auto& [id, state] : expected.states)
    expect_same_state(actual.states.at(id), state, where + ", sequence " + std::to_string(id));
}

std::vector<SamplingOptions> samplings() {
  SamplingOptions penalised{0.9, 0, 1, 0, 1.2, 11};
  penalised.presence_penalty = 0.5, penalised.frequency_penalty = 0.3;
  penalised.logit_bias = {{7, 2.0}, {100, -3.0}};
  return {kGreedy, kDrawn, {1, 0, 1, 0, 1, 8}, penalised};
}

struct Kind {
  const char* preset;
  torch::Dtype dtype;
  bool invariant;
  bool fixed_rows = false;  // DecodeOptions::fixed_rows, of the engine without drafts, too
  torch::DeviceType device = torch::kCPU;
  Steps steps = Steps::fused;
};

void PrintTo(const Kind& kind, std::ostream* to) { *to << kind.preset; }

std::string name_of(const testing::TestParamInfo<Kind>& given) {
  const Kind& kind = given.param;
  const std::string preset = kind.preset;
  return (preset == "based-360m" ? "one_program" : preset.substr(0, preset.find('-'))) + (kind.invariant ? "_invariant" : "") +
         (kind.device == torch::kCUDA
              ? std::string(kind.dtype == torch::kFloat32 ? "_fp32" : "_bf16") + (kind.steps == Steps::plain ? "_plain_cuda" : "_cuda")
          : kind.fixed_rows ? "_fixed_rows"
                            : "");
}

class DraftsOfModels : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().device == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  static std::shared_ptr<LanguageModel> model() {
    auto model = GetParam().preset == std::string("based-360m") ? some_layers() : distinct_model(GetParam().device, GetParam().preset);
    model->to(GetParam().dtype);
    return model;
  }
  // Layers that one kernel computes on Hopper, with a small vocabulary.
  static std::shared_ptr<LanguageModel> some_layers() {
    ModelConfig config = find_preset("based-360m");
    config.layers = {"conv", "linear", "window"}, config.vocab_size = find_preset("based-tiny").vocab_size;
    torch::manual_seed(5);
    auto model = std::make_shared<LanguageModel>(config);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.mul_(2);
    model->to(GetParam().device);
    model->eval();
    return model;
  }
  // Engines with drafts on a GPU have one slot, and one-row steps.
  static bool has_one_slot() { return GetParam().fixed_rows || GetParam().device == torch::kCUDA; }
  static EngineOptions options(int64_t slots = 1) {
    EngineOptions options{.slots = slots};
    if (GetParam().device == torch::kCUDA) options.cache_tokens = 1024;
    options.decode.steps = GetParam().steps;
    options.decode.fixed_rows = GetParam().fixed_rows;
    options.decode.invariant = GetParam().invariant;
    options.decode.log_probabilities = true;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, DraftsOfModels,
                         testing::Values(Kind{"based-tiny", torch::kFloat32, false}, Kind{"based-tiny", torch::kBFloat16, true},
                                         Kind{"attn-tiny", torch::kFloat32, true}, Kind{"attn-tiny", torch::kBFloat16, false},
                                         Kind{"mamba-tiny", torch::kBFloat16, true}, Kind{"based-tiny", torch::kBFloat16, false, true}),
                         name_of);

std::vector<Kind> kinds_on_a_gpu() {
  std::vector<Kind> kinds;
  for (const char* preset : {"based-tiny", "attn-tiny", "mamba-tiny"})
    for (const torch::Dtype dtype : {torch::kFloat32, torch::kBFloat16})
      for (const bool invariant : {false, true})
        for (const Steps steps : {Steps::fused, Steps::plain}) kinds.push_back({preset, dtype, invariant, true, torch::kCUDA, steps});
  kinds.push_back({"based-360m", torch::kBFloat16, false, /*fixed_rows=*/false, torch::kCUDA});  // compared with plain engines
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Gpu, DraftsOfModels, testing::ValuesIn(kinds_on_a_gpu()), name_of);

// Prompts of which one ends inside of a cell. The drafts have every length, are right, wrong at some places, or wrong at once.
TEST_P(DraftsOfModels, GiveTheTextOfPlainSteps) {
  const auto model = this->model();
  const auto all = samplings();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<Wanted> wanted{{some_text(i % 2 == 0 ? 5 : 90, 3), {.sampling = all[i], .max_tokens = 41}}};
    const Made expected = generate(*model, options(), wanted);
    for (const auto& [every, most] :
         {std::pair{kNever, int64_t{7}}, {int64_t{5}, int64_t{7}}, {int64_t{3}, int64_t{2}}, {int64_t{1}, int64_t{4}}}) {
      const Made made = generate(*model, with_drafts(options(), drafter_of(expected.texts, every), most), wanted);
      const std::string where =
          "sampling " + std::to_string(i) + ", wrong " + std::to_string(every) + ", drafts of " + std::to_string(most);
      expect_same(made, expected, where);
      if (every == kNever && !options().decode.invariant) {
        EXPECT_LE(made.steps, 8) << where;
      }
      if (every == 1) {
        EXPECT_GE(made.steps, expected.steps) << where;
      }
    }
  }
}

// A text whose last blocks repeat each other, so that the block after it is drafted.
Ids repetitive_text() {
  Ids text = some_text(40, 3);
  for (size_t i = 0; i < 70; ++i) text.push_back(text[5 + i % 7]);
  return text;
}

EngineOptions by_repetition(EngineOptions options, int64_t most, bool ahead) {
  options = with_drafts(std::move(options), make_ngram_drafter(), most);
  options.drafts.by_repetition = true;
  options.ahead = ahead;
  return options;
}

// Blocks after one that repeats earlier text are drafted, others are decoded by one-row steps; with and without drafts the bits are the
// same. So they are if steps are launched ahead.
TEST_P(DraftsOfModels, GiveTheTextOfOneRowStepsWhereTextDoesNotRepeat) {
  const auto model = this->model();
  for (const SamplingOptions& sampling : samplings()) {
    const std::vector<Wanted> wanted{{repetitive_text(), {.sampling = sampling, .max_tokens = 90}}};
    const Made expected = generate(*model, by_repetition(options(), 0, false), wanted);
    const bool has_one_row_steps = has_one_slot() && !options().decode.invariant;
    for (const int64_t most : {0, 1, 4, 7}) {
      for (const bool ahead : {false, true}) {
        const std::string where = "drafts of " + std::to_string(most) + (ahead ? ", ahead" : "");
        const Made made = generate(*model, by_repetition(options(), most, ahead), wanted);
        expect_same(made, expected, where);
        EXPECT_EQ(made.counts.tokens, 90) << where;
        EXPECT_EQ(made.counts.drafted > 0, most > 0) << where;
        EXPECT_EQ(made.counts.one_row > 0, has_one_row_steps) << where;
        EXPECT_LT(made.counts.one_row, made.counts.steps) << where;
      }
    }
  }
}

// Snapshots and forks between steps, of which one may be in flight, and a sequence that is removed while one is.
TEST_P(DraftsOfModels, LeaveTheStateOfTheTextBetweenOneRowSteps) {
  const auto model = this->model();
  SequenceOptions options{.sampling = kDrawn, .max_tokens = 90};
  const auto ids_of = [](Engine& engine, int64_t sequence) {
    while (engine.finish(sequence) == Finish::none) engine.step();
    return engine.text(sequence);
  };
  const Made expected = generate(*model, by_repetition(DraftsOfModels::options(), 0, false), {{repetitive_text(), options}});
  Engine plain(*model, by_repetition(DraftsOfModels::options(), 0, false));
  Engine engine(*model, by_repetition(DraftsOfModels::options(), 7, true));
  for (const int64_t stops_after : {1, 20, 33, 50, 70}) {
    const int64_t expected_id = plain.add(repetitive_text(), options), sequence = engine.add(repetitive_text(), options);
    Ids returned;
    while (static_cast<int64_t>(returned.size()) < stops_after)
      for (const Engine::Output& output : engine.step()) returned.push_back(output.token);
    const SequenceState snapshot = engine.snapshot(sequence);
    while (plain.text(expected_id).size() < snapshot.ids.size()) plain.step();
    const std::string where = "after " + std::to_string(stops_after) + " tokens";
    expect_same_state(snapshot, plain.snapshot(expected_id), where);
    for (const Engine::Output& output : engine.step()) returned.push_back(output.token);
    EXPECT_TRUE(std::equal(returned.begin(), returned.end(), expected.texts.at(0).begin() + static_cast<int64_t>(repetitive_text().size())))
        << where;
    engine.remove(sequence);
    plain.remove(expected_id);
    SequenceOptions rest = options;
    rest.max_tokens = options.max_tokens - static_cast<int64_t>(snapshot.ids.size() - repetitive_text().size());
    SequenceState copy{snapshot.ids, snapshot.state.extract(0), snapshot.cells};
    const int64_t continued = engine.add(std::move(copy), rest);
    EXPECT_EQ(ids_of(engine, continued), expected.texts.at(0)) << where;
    engine.remove(continued);
  }
}

// Prompts one after another in one slot. Each ends at a stop token, where a step that was launched ahead has gone one token too far.
TEST_P(DraftsOfModels, GiveTheTextsOfOneRowStepsOneAfterAnother) {
  const auto model = this->model();
  const std::vector<Ids> prompts{repetitive_text(), some_text(50, 9), repetitive_text(), some_text(3, 5)};
  const auto texts_of = [&](int64_t most, bool ahead, const std::vector<Ids>& stops) {
    EngineOptions options = by_repetition(DraftsOfModels::options(), most, ahead);
    options.max_idle_slot_steps = 4;
    Engine engine(*model, options);
    for (size_t i = 0; i < prompts.size(); ++i)
      engine.add(prompts[i], {.sampling = kDrawn, .max_tokens = 60, .stop_tokens = stops.empty() ? Ids() : stops[i]});
    std::map<int64_t, Ids> returned;
    while (!engine.idle())
      for (const Engine::Output& output : engine.step()) returned[output.sequence].push_back(output.token);
    for (size_t i = 0; i < prompts.size(); ++i) {
      Ids whole = prompts[i];
      whole.insert(whole.end(), returned[static_cast<int64_t>(i)].begin(), returned[static_cast<int64_t>(i)].end());
      EXPECT_EQ(whole, engine.text(static_cast<int64_t>(i))) << i;
    }
    return returned;
  };
  const auto whole = texts_of(0, false, {});
  std::vector<Ids> stops;
  for (size_t i = 0; i < prompts.size(); ++i) stops.push_back({whole.at(static_cast<int64_t>(i)).at(7 + 13 * i)});
  const auto expected = texts_of(0, false, stops);
  for (const auto& [id, tokens] : expected) {
    EXPECT_LT(tokens.size(), whole.at(id).size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.at(id).begin())) << id;
  }
  for (const int64_t most : {0, 7})
    for (const bool ahead : {false, true}) EXPECT_EQ(texts_of(most, ahead, stops), expected) << most << (ahead ? ", ahead" : "");
}

TEST_P(DraftsOfModels, GiveTheTextOfPlainStepsWithEachDrafter) {
  const auto model = this->model();
  const std::shared_ptr<LanguageModel> other = distinct_model(torch::kCPU, "based-tiny");
  const std::vector<Wanted> wanted{{some_text(70, 3), {.sampling = kDrawn, .max_tokens = 40}}};
  const Made expected = generate(*model, options(), wanted);
  expect_same(generate(*model, with_drafts(options(), make_ngram_drafter()), wanted), expected, "n-grams");
  expect_same(generate(*model, with_drafts(options(), make_model_drafter(other, 1)), wanted), expected, "another model");
  EngineOptions adaptive = options();
  adaptive.drafts.drafter = make_ngram_drafter();
  expect_same(generate(*model, adaptive, wanted), expected, "adaptive");
}

// Sequences of different lengths and samplings in two slots. The drafter knows every third of them, and returns nothing for the others.
TEST_P(DraftsOfModels, MeetPlainRowsInABatch) {
  if (!options().decode.invariant) GTEST_SKIP() << "the bits depend on the prompts that are read together";
  if (has_one_slot()) GTEST_SKIP() << "such an engine has one slot";
  const auto model = this->model();
  const auto all = samplings();
  std::vector<Wanted> wanted;
  for (int64_t i = 0; i < 6; ++i)
    wanted.push_back(
        {some_text(1 + 37 * i % 80, i), {.sampling = all[static_cast<size_t>(i) % all.size()], .max_tokens = 9 + 11 * i % 30}});
  const Made expected = generate(*model, options(3), wanted);
  const auto knows = drafter_of(expected.texts, 7);
  const auto drafter = std::make_shared<GivenDrafter>([&](int64_t sequence, const Ids& tokens, int64_t most) {
    std::vector<Drafter::Request> requests{{sequence, &tokens, nullptr, most}};
    if (sequence % 3 != 1) knows->draft(requests);
    if (sequence % 3 == 2 && requests[0].drafts.size() > 2) requests[0].drafts.resize(2);
    return requests[0].drafts;
  });
  expect_same(generate(*model, with_drafts(options(3), drafter), wanted), expected, "three slots");
  EXPECT_EQ(std::set<int64_t>(drafter->forgotten.begin(), drafter->forgotten.end()).size(), 6U);
}

// After each step, the snapshot is that of plain steps with as many tokens, and a fork of it has the same rest.
TEST_P(DraftsOfModels, LeaveTheStateOfPlainStepsBetweenThem) {
  const auto model = this->model();
  const Wanted wanted{some_text(50, 3), {.sampling = kDrawn, .max_tokens = 30, .keep_state = true}};
  const Made expected = generate(*model, options(), {wanted});
  Engine plain(*model, options()),
      engine(*model, with_drafts(options(has_one_slot() ? 1 : 2), drafter_of({{0, expected.texts.at(0)}, {1, expected.texts.at(0)}}, 5)));
  plain.add(wanted.prompt, wanted.options);
  const int64_t sequence = engine.add(wanted.prompt, wanted.options);
  while (!engine.idle()) {
    engine.step();
    while (plain.text(0).size() < engine.text(sequence).size()) plain.step();
    expect_same_state(engine.snapshot(sequence), plain.snapshot(0), std::to_string(engine.text(sequence).size()) + " tokens");
    if (engine.text(sequence).size() > 60 || engine.idle()) break;
  }
  SequenceOptions rest = wanted.options;
  rest.max_tokens = wanted.options.max_tokens - static_cast<int64_t>(engine.text(sequence).size() - wanted.prompt.size());
  const int64_t fork = engine.fork(sequence, rest);
  while (!engine.idle()) engine.step();
  EXPECT_EQ(engine.text(sequence), expected.texts.at(0));
  EXPECT_EQ(engine.text(fork), expected.texts.at(0));
}

// A stop token, or the limit of tokens, at each place of a draft.
TEST_P(DraftsOfModels, EndWherePlainStepsEnd) {
  const auto model = this->model();
  const Ids prompt = some_text(12, 3);
  const Made whole = generate(*model, options(), {{prompt, {.sampling = kDrawn, .max_tokens = 12}}});
  for (int64_t place = 1; place <= 9; ++place) {
    const int64_t stop = whole.texts.at(0)[prompt.size() + static_cast<size_t>(place)];
    for (const SequenceOptions& ends : {SequenceOptions{.sampling = kDrawn, .max_tokens = 12, .stop_tokens = {stop}},
                                        SequenceOptions{.sampling = kDrawn, .max_tokens = place}}) {
      const Made expected = generate(*model, options(), {{prompt, ends}});
      const Made made = generate(*model, with_drafts(options(), drafter_of(whole.texts, kNever)), {{prompt, ends}});
      expect_same(made, expected, "place " + std::to_string(place));
    }
  }
}

// Engine::end() within the outputs of a step: the sequence is left as if it had ended there, even if the step has ended it later.
TEST_P(DraftsOfModels, AreTakenBackAfterTheEnd) {
  const auto model = this->model();
  const Ids prompt = some_text(12, 3);
  const SequenceOptions options_of_all{.sampling = kDrawn, .max_tokens = 6, .keep_state = true};
  const Made whole = generate(*model, options(), {{prompt, options_of_all}});
  for (int64_t unwanted = 1; unwanted <= 4; ++unwanted) {
    for (const int64_t max_tokens : {6, 30}) {
      SequenceOptions some = options_of_all;
      some.max_tokens = max_tokens;
      Engine engine(*model, with_drafts(options(), drafter_of(whole.texts, kNever), 5));
      const int64_t sequence = engine.add(prompt, some);
      size_t outputs = 0;
      while (outputs == 0) outputs = engine.step().size();  // invariant engines first read the prompt by steps
      ASSERT_EQ(outputs, 6U);
      engine.end(sequence, unwanted);
      EXPECT_EQ(engine.finish(sequence), Finish::stop);
      some.max_tokens = 6 - unwanted;
      const Made expected = generate(*model, options(), {{prompt, some}});
      expect_same_state(engine.take_state(sequence), expected.states.at(0), std::to_string(unwanted) + " of " + std::to_string(max_tokens));
    }
  }
}

// A stop string inside of a draft: text, ids and state are those without drafts.
TEST_P(DraftsOfModels, EndAtStopStrings) {
  const auto model = this->model();
  const ByteTokenizer tokenizer;
  const Ids prompt = some_text(12, 3);
  const SequenceOptions sequence{.sampling = kDrawn, .max_tokens = 24, .keep_state = true};
  const Made whole = generate(*model, options(), {{prompt, sequence}});
  for (const size_t place : {2, 5, 6, 11}) {
    const int64_t id = whole.texts.at(0)[prompt.size() + place];
    if (id >= 128) continue;  // a part of a character
    const auto result_of = [&](const EngineOptions& engine_options) {
      Engine engine(*model, engine_options);
      TextGenerator generator(engine, tokenizer);
      generator.add({prompt, {}, sequence, {std::string(1, static_cast<char>(id))}});
      std::pair<GeneratedText, SequenceState> result;
      while (!generator.idle())
        generator.step({}, [&](int64_t ended, GeneratedText text) { result = {std::move(text), engine.take_state(ended)}; });
      return result;
    };
    const auto expected = result_of(options()), made = result_of(with_drafts(options(), drafter_of(whole.texts, kNever)));
    EXPECT_EQ(made.first.text, expected.first.text) << place;
    EXPECT_EQ(made.first.ids, expected.first.ids) << place;
    EXPECT_EQ(made.first.finish_reason, expected.first.finish_reason) << place;
    expect_same_state(made.second, expected.second, "stop string at " + std::to_string(place));
  }
}

// On the CPU the bits of a row do not depend on the number of rows, so steps with a fixed number have those of plain steps.
TEST(Drafts, GiveTheBitsOfPlainStepsInAFixedNumberOfRows) {
  const auto model = distinct_model(torch::kCPU);
  auto all = samplings();
  for (const bool is_recorded : {false, true}) {
    std::optional<RecordedOnCpu> recorded;
    for (size_t i = 0; i < all.size(); ++i) {
      EngineOptions options;
      options.decode.steps = Steps::plain;
      options.decode.log_probabilities = i != 1;
      const std::vector<Wanted> wanted{{some_text(20, 3), {.sampling = all[i], .max_tokens = 30}}};
      std::vector<Wanted> with_top = wanted;
      if (i % 2 == 1) with_top[0].options.top_log_probabilities = 3;
      const Made expected = generate(*model, options, with_top);
      options.decode.steps = Steps::fused, options.decode.fixed_rows = true;
      if (is_recorded) recorded.emplace();
      const std::string where = "sampling " + std::to_string(i) + (is_recorded ? ", recorded" : "");
      expect_same(generate(*model, options, with_top), expected, where + ", without drafts");
      for (const int64_t every : {kNever, int64_t{3}}) {
        const Made made = generate(*model, with_drafts(options, drafter_of(expected.texts, every)), with_top);
        expect_same(made, expected, where + ", wrong " + std::to_string(every));
        EXPECT_LT(made.steps, expected.steps) << where;
      }
      recorded.reset();
    }
  }
}

TEST(Drafts, StayWithinPagesAndPositions) {
  const auto model = distinct_model(torch::kCPU, "attn-tiny");
  const std::vector<Wanted> wanted{{some_text(60, 3), {.sampling = kGreedy, .max_tokens = 300}}};
  for (const int64_t cache : {64, 75}) {  // the cache is full after so many tokens
    const EngineOptions options{.slots = 1, .cache_tokens = cache};
    const Made expected = generate(*model, options, wanted);
    EXPECT_EQ(expected.finish.at(0), Finish::cache_full);
    expect_same(generate(*model, with_drafts(options, drafter_of(expected.texts, kNever)), wanted), expected, std::to_string(cache));
  }
}

std::string refusal_of(const EngineOptions& options) {
  const auto model = distinct_model(torch::kCPU);
  try {
    const Engine engine(*model, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Drafts, AreRefusedWhereTheBitsWouldDependOnThem) {
  const std::shared_ptr<Drafter> drafter = make_ngram_drafter();
  EXPECT_THAT(refusal_of(with_drafts({.slots = 65}, drafter)), HasSubstr("at most 64 slots, or invariant steps"));
  EXPECT_THAT(refusal_of(with_drafts({}, drafter, 8)), HasSubstr("0 to 7 tokens, got 8"));
  EXPECT_EQ(refusal_of(with_drafts({.slots = 64}, drafter)), "accepted");
  EngineOptions fixed{.slots = 2};
  fixed.decode.fixed_rows = true;
  EXPECT_THAT(refusal_of(with_drafts(fixed, drafter)), HasSubstr("needs one slot, got 2"));
  const auto model = distinct_model(torch::kCPU);
  EXPECT_THROW(Session(*model, with_drafts({}, drafter)), UsageError);
}

// The same model drafts its own tokens: all are accepted, greedy and sampled.
TEST(ModelDrafter, DrawsWithTheNumbersOfTheSequence) {
  const auto model = distinct_model(torch::kCPU);
  for (const SamplingOptions& sampling : {kGreedy, SamplingOptions{1, 0, 1, 0, 1, 8}}) {
    Engine engine(*model, with_drafts({}, make_model_drafter(model, 1), 3));
    engine.add(some_text(30, 3), {.sampling = sampling, .max_tokens = 40});
    while (!engine.idle()) engine.step();
    EXPECT_GE(10 * engine.draft_counts().accepted, 9 * engine.draft_counts().drafted);
    EXPECT_EQ(engine.draft_counts().tokens, 40);
    EXPECT_LE(engine.draft_counts().steps, 13);
  }
}

// Drafts of a model do not depend on the way by which it has come to a text: with accepted drafts, rejected ones and new tokens.
TEST(ModelDrafter, ReturnsToTheStateOfTheText) {
  const std::shared_ptr<LanguageModel> model = distinct_model(torch::kCPU);
  const auto draft_of = [](Drafter& drafter, const Ids& text) {
    std::vector<Drafter::Request> requests{{0, &text, &kGreedy, 4}};
    drafter.draft(requests);
    return requests[0].drafts;
  };
  const auto drafter = make_model_drafter(model, 1);
  Ids text = some_text(20, 3);
  for (const int64_t accepted : {4, 0, 2, 3, 4, 1}) {
    const Ids drafts = draft_of(*drafter, text);
    ASSERT_EQ(drafts.size(), 4U);
    EXPECT_EQ(drafts, draft_of(*make_model_drafter(model, 1), text)) << accepted;
    text.insert(text.end(), drafts.begin(), drafts.begin() + accepted);
    text.push_back(accepted == 2 ? 9 : 77);
  }
  text.resize(6);
  EXPECT_EQ(draft_of(*drafter, text), draft_of(*make_model_drafter(model, 1), text));
}

// The drafter has learnt positions for 24 tokens: it drafts up to there, and nothing for a text that is longer from the beginning.
TEST(ModelDrafter, EndsAtItsPositions) {
  const auto model = distinct_model(torch::kCPU);
  ModelConfig config = model->config();
  config.max_positions = 24;
  torch::manual_seed(5);
  const auto shorter = std::make_shared<LanguageModel>(config);
  shorter->eval();
  const Wanted within{some_text(10, 3), {.sampling = kGreedy, .max_tokens = 30}};
  const Wanted beyond{some_text(40, 3), {.sampling = kDrawn, .max_tokens = 20}};
  for (const int64_t slots : {1, 2}) {
    EngineOptions options{.slots = slots};
    options.decode.invariant = true;  // the bits do not depend on the other sequence
    for (const auto& wanted : {std::vector<Wanted>{within}, {beyond}, {beyond, within}, {within, within, beyond}}) {
      const Made expected = generate(*model, options, wanted);
      expect_same(generate(*model, with_drafts(options, make_model_drafter(shorter, slots)), wanted), expected,
                  std::to_string(wanted.size()) + " texts in " + std::to_string(slots) + " slots");
    }
  }
  for (const int64_t length : {23, 24, 25, 40}) {
    const Ids text = some_text(length, 3);
    std::vector<Drafter::Request> requests{{0, &text, &kGreedy, 4}};
    make_model_drafter(shorter, 1)->draft(requests);
    EXPECT_EQ(requests[0].drafts.size(), static_cast<size_t>(std::max<int64_t>(25 - length, 0))) << length;
    EXPECT_GE(requests[0].most, 0) << length;
  }
}

}  // namespace drafts_test
}  // namespace based

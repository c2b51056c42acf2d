// The C interface, compared with the C++ that it calls.
#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <thread>

#include "based/c/based.h"
#include "based/core/files.h"
#include "based/data/tokenizer.h"
#include "based/generate/scorer.h"
#include "based/generate/session.h"
#include "based/generate/text_model.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace c_interface_test {

using testing::HasSubstr;

// A folder with a model whose most likely tokens do not depend on rounding.
void write_model(const std::string& folder, int64_t seed = 5) {
  torch::manual_seed(seed);
  LanguageModel model(find_preset("based-tiny"));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.mul_(4);
  const ByteTokenizer tokenizer;
  save_model(model, folder, tokenizer.hash());
  tokenizer.save(folder);
}

struct Result {
  std::string pieces, text, reason;
  std::vector<int64_t> ids;
  std::vector<float> log_probabilities;
  int64_t prompt_tokens = 0;
};

class CInterface : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    write_model(folder_->file("m"));
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override { ASSERT_EQ(based_model_load(path().c_str(), nullptr, &model_), BASED_OK) << based_last_error(); }
  void TearDown() override { based_model_free(model_); }

  static std::string path() { return folder_->file("m"); }
  static based_prompt prompt(const std::string& text, const based_state* state = nullptr) {
    return {state, text.data(), text.size(), nullptr, 0};
  }
  static based_generation_options greedy(int64_t tokens) {
    based_generation_options options;
    based_generation_options_init(&options);
    options.max_tokens = tokens;
    options.temperature = 0;
    return options;
  }
  based_state* read(const std::string& text, const based_state* before = nullptr) const {
    const based_prompt given = prompt(text, before);
    based_state* state = nullptr;
    EXPECT_EQ(based_state_read(model_, &given, nullptr, nullptr, &state), BASED_OK) << based_last_error();
    return state;
  }
  static std::string bytes_of(const based_state* state) {
    unsigned char* data = nullptr;
    size_t size = 0;
    EXPECT_EQ(based_state_bytes(state, &data, &size), BASED_OK) << based_last_error();
    std::string bytes(reinterpret_cast<const char*>(data), size);
    based_free(data);
    return bytes;
  }
  // Makes all steps of a generation, and returns the results of its prompts.
  static std::vector<Result> finish(based_generation* generation, size_t prompts) {
    std::vector<Result> results(prompts);
    based_event event{};
    do {
      EXPECT_EQ(based_generation_next(generation, &event), BASED_OK) << based_last_error();
      if (event.kind == BASED_EVENT_TEXT) results.at(event.prompt).pieces.append(event.text, event.bytes);
    } while (event.kind != BASED_EVENT_DONE && !testing::Test::HasFailure());
    for (size_t i = 0; i < prompts; ++i) {
      based_generation_result result{};
      result.size = sizeof result;
      EXPECT_EQ(based_generation_describe(generation, i, &result), BASED_OK) << based_last_error();
      results[i].text.assign(result.text, result.bytes);
      results[i].reason = result.finish_reason;
      results[i].ids.assign(result.ids, result.ids + result.count);
      if (result.log_probabilities != nullptr)
        results[i].log_probabilities.assign(result.log_probabilities, result.log_probabilities + result.count);
      results[i].prompt_tokens = result.prompt_tokens;
    }
    return results;
  }
  std::vector<Result> generate(const std::vector<based_prompt>& prompts, const based_generation_options& options) const {
    based_generation* generation = nullptr;
    EXPECT_EQ(based_generation_start(model_, prompts.data(), prompts.size(), &options, &generation), BASED_OK) << based_last_error();
    std::vector<Result> results = finish(generation, prompts.size());
    based_generation_free(generation);
    return results;
  }

  static inline TemporaryFolder* folder_ = nullptr;
  based_model* model_ = nullptr;
};

TEST_F(CInterface, ErrorsHaveTheProgramsStatusAndAMessage) {
  based_model* model = nullptr;
  EXPECT_EQ(based_model_load(folder_->file("absent").c_str(), nullptr, &model), BASED_FAILED);
  EXPECT_THAT(based_last_error(), HasSubstr("absent"));
  EXPECT_EQ(based_model_load(nullptr, nullptr, &model), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("folder is NULL"));
  based_load_options options{};
  EXPECT_EQ(based_model_load(path().c_str(), &options, &model), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("based_load_options_init"));
  based_load_options_init(&options);
  options.device = "tpu";
  EXPECT_EQ(based_model_load(path().c_str(), &options, &model), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("'tpu'"));
  EXPECT_EQ(model, nullptr);
  std::string elsewhere;
  std::thread([&elsewhere] { elsewhere = based_last_error(); }).join();
  EXPECT_EQ(elsewhere, "");
}

TEST_F(CInterface, OptionsOfAnotherVersionKeepTheirMeaning) {
  struct Newer {
    based_generation_options known;
    int64_t later = 0;
  } newer;
  newer.known = greedy(3);
  newer.known.size = sizeof newer;
  const based_prompt given = prompt("a");
  based_generation* generation = nullptr;
  ASSERT_EQ(based_generation_start(model_, &given, 1, &newer.known, &generation), BASED_OK) << based_last_error();
  based_generation_free(generation);
  newer.later = 1;
  EXPECT_EQ(based_generation_start(model_, &given, 1, &newer.known, &generation), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("does not have"));
  based_generation_options older = greedy(3);
  older.size = offsetof(based_generation_options, temperature);  // the program knows nothing after max_tokens
  based_generation_options plain;
  based_generation_options_init(&plain);
  plain.max_tokens = 3;
  EXPECT_EQ(generate({given}, older).at(0).ids, generate({given}, plain).at(0).ids);
}

TEST_F(CInterface, DescribesTheModel) {
  based_model_info info{};
  info.size = sizeof info;
  ASSERT_EQ(based_model_describe(model_, &info), BASED_OK) << based_last_error();
  const TextModel loaded = load_text_model(path());
  EXPECT_EQ(info.vocab_size, 257);
  EXPECT_EQ(info.end_of_text, 256);
  EXPECT_EQ(info.parameters, loaded.model->parameter_count());
  EXPECT_EQ(info.state_bytes, loaded.model->make_state(1).bytes());
  EXPECT_EQ(info.hash, loaded.hash);
  EXPECT_STREQ(info.device, "cpu");
  EXPECT_STREQ(info.dtype, "fp32");
  EXPECT_EQ(info.size, sizeof info);
}

TEST_F(CInterface, TextAndIdsAreConvertedBothWays) {
  const std::string text("na\xc3\xafve\0text", 11);
  int64_t* ids = nullptr;
  size_t count = 0, bytes = 0;
  char* back = nullptr;
  ASSERT_EQ(based_encode(model_, text.data(), text.size(), &ids, &count), BASED_OK) << based_last_error();
  ASSERT_EQ(count, text.size());
  ASSERT_EQ(based_decode(model_, ids, count, &back, &bytes), BASED_OK) << based_last_error();
  EXPECT_EQ(std::string(back, bytes), text);
  ids[0] = 257;
  EXPECT_EQ(based_decode(model_, ids, count, &back, &bytes), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("257"));
  const based_prompt prompt{nullptr, nullptr, 0, ids, 1};
  based_state* state = nullptr;
  EXPECT_EQ(based_state_read(model_, &prompt, nullptr, nullptr, &state), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("257"));
  based_free(ids);
  based_free(back);
}

TEST_F(CInterface, GeneratesTheTokensOfASession) {
  based_generation_options options = greedy(12);
  options.log_probabilities = 1;
  const std::vector<Result> results = generate({prompt("Once")}, options);
  const TextModel loaded = load_text_model(path());
  Session session(*loaded.model);
  session.append(encode_ids(*loaded.tokenizer, "Once"));
  std::vector<int64_t> wanted;
  for (int i = 0; i < 12; ++i) wanted.push_back(session.next({0}));
  EXPECT_EQ(results[0].ids, wanted);
  EXPECT_EQ(results[0].pieces, results[0].text);
  EXPECT_EQ(results[0].text, loaded.tokenizer->decode(std::vector<int32_t>(wanted.begin(), wanted.end())));
  EXPECT_EQ(results[0].reason, "length");
  EXPECT_EQ(results[0].prompt_tokens, 4);
  ASSERT_EQ(results[0].log_probabilities.size(), 12U);
  // The scores of the same tokens, by another path.
  std::vector<int64_t> context = encode_ids(*loaded.tokenizer, "Once");
  std::vector<float> scores(12);
  based_score_request request{context.data(), context.size(), wanted.data(), wanted.size(), scores.data(), 0, 0};
  ASSERT_EQ(based_score(model_, &request, 1, nullptr, nullptr), BASED_OK) << based_last_error();
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], results[0].log_probabilities[i], 1e-3) << i;
  EXPECT_EQ(request.greedy, 1);
  // A second generation takes over the first one's engine.
  EXPECT_EQ(generate({prompt("Once")}, options).at(0).ids, wanted);
}

// With `invariant`, a batch has the bits of its prompts one by one; more prompts than slots wait.
TEST_F(CInterface, ABatchHasTheResultsOfItsPromptsAlone) {
  based_load_options load;
  based_load_options_init(&load);
  load.invariant = 1;
  based_model_free(model_);
  ASSERT_EQ(based_model_load(path().c_str(), &load, &model_), BASED_OK) << based_last_error();
  const std::vector<std::string> texts{"Once", "upon a", "time"};
  const std::vector<based_prompt> prompts{prompt(texts[0]), prompt(texts[1]), prompt(texts[2])};
  based_generation_options options = greedy(10);
  options.temperature = 0.9;
  options.seed = 3;
  options.slots = 2;
  const std::vector<Result> all = generate(prompts, options);
  for (size_t i = 0; i < texts.size(); ++i) {
    options.seed = 3 + static_cast<int64_t>(i);
    const Result alone = generate({prompts[i]}, options).at(0);
    EXPECT_EQ(all[i].ids, alone.ids) << i;
    EXPECT_EQ(all[i].pieces, alone.text) << i;
  }
}

TEST_F(CInterface, AStateIsTheBytesOfItsFile) {
  based_state* state = read("Once upon a time");
  const TextModel loaded = load_text_model(path());
  Session session(*loaded.model);
  session.append(encode_ids(*loaded.tokenizer, "Once upon a time"));
  session.save(folder_->file("session.state"), loaded.hash);
  const std::string bytes = bytes_of(state);
  EXPECT_EQ(bytes, read_file(folder_->file("session.state")));
  ASSERT_EQ(based_state_save(state, folder_->file("c.state").c_str()), BASED_OK) << based_last_error();
  EXPECT_EQ(bytes, read_file(folder_->file("c.state")));

  based_state *from_file = nullptr, *from_bytes = nullptr;
  ASSERT_EQ(based_state_load(model_, folder_->file("c.state").c_str(), &from_file), BASED_OK) << based_last_error();
  const std::string shifted = "x" + bytes;  // at an odd address
  ASSERT_EQ(based_state_from_bytes(model_, shifted.data() + 1, bytes.size(), &from_bytes), BASED_OK) << based_last_error();
  EXPECT_EQ(bytes_of(from_file), bytes);
  EXPECT_EQ(bytes_of(from_bytes), bytes);
  const int64_t* ids = nullptr;
  size_t count = 0;
  ASSERT_EQ(based_state_ids(from_bytes, &ids, &count), BASED_OK);
  EXPECT_EQ(count, 16U);
  const std::vector<int64_t> wanted = generate({prompt("", state)}, greedy(8)).at(0).ids;
  EXPECT_EQ(generate({prompt("", from_file)}, greedy(8)).at(0).ids, wanted);
  EXPECT_EQ(generate({prompt("", from_bytes)}, greedy(8)).at(0).ids, wanted);
  for (based_state* each : {state, from_file, from_bytes}) based_state_free(each);
}

TEST_F(CInterface, DamagedAndForeignStatesAreRefused) {
  based_state* state = read("Once");
  std::string bytes = bytes_of(state);
  write_model(folder_->file("other"), 6);
  based_model* other = nullptr;
  ASSERT_EQ(based_model_load(folder_->file("other").c_str(), nullptr, &other), BASED_OK) << based_last_error();
  based_state* refused = nullptr;
  EXPECT_EQ(based_state_from_bytes(other, bytes.data(), bytes.size(), &refused), BASED_FAILED);
  EXPECT_THAT(based_last_error(), HasSubstr("made by model"));
  const based_prompt foreign = prompt("more", state);
  EXPECT_EQ(based_state_read(other, &foreign, nullptr, nullptr, &refused), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("another model handle"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  EXPECT_EQ(based_state_from_bytes(model_, bytes.data(), bytes.size(), &refused), BASED_FAILED);
  EXPECT_THAT(based_last_error(), HasSubstr("checksum"));
  EXPECT_EQ(refused, nullptr);
  based_state_free(state);
  based_model_free(other);
}

TEST_F(CInterface, ForksContinueIndependently) {
  based_state *state = read("Once upon"), *fork = nullptr;
  const std::string bytes = bytes_of(state);
  ASSERT_EQ(based_state_fork(state, &fork), BASED_OK);
  based_state* longer = read(" a time", fork);
  EXPECT_EQ(bytes_of(state), bytes);
  EXPECT_EQ(bytes_of(fork), bytes);
  EXPECT_NE(bytes_of(longer), bytes);
  based_state_free(state);
  EXPECT_EQ(generate({prompt(" a time", fork)}, greedy(8)).at(0).ids, generate({prompt("", longer)}, greedy(8)).at(0).ids);
  EXPECT_EQ(generate({prompt("Once upon a time")}, greedy(8)).at(0).ids, generate({prompt("", longer)}, greedy(8)).at(0).ids);
  based_state_free(fork);
  based_state_free(longer);
}

TEST_F(CInterface, TheStateAfterAGenerationContinuesIt) {
  const std::vector<int64_t> whole = generate({prompt("Once")}, greedy(14)).at(0).ids;
  based_generation_options options = greedy(9);
  options.keep_states = 1;
  const based_prompt given = prompt("Once");
  based_generation* generation = nullptr;
  ASSERT_EQ(based_generation_start(model_, &given, 1, &options, &generation), BASED_OK) << based_last_error();
  based_model_free(model_);  // the generation keeps the model
  finish(generation, 1);
  based_state* state = nullptr;
  ASSERT_EQ(based_generation_state(generation, 0, &state), BASED_OK) << based_last_error();
  EXPECT_EQ(based_generation_state(generation, 1, &state), BASED_USAGE);
  based_generation_free(generation);
  ASSERT_EQ(based_model_load(path().c_str(), nullptr, &model_), BASED_OK);
  const std::string bytes = bytes_of(state);
  based_state_free(state);
  ASSERT_EQ(based_state_from_bytes(model_, bytes.data(), bytes.size(), &state), BASED_OK) << based_last_error();
  EXPECT_EQ(generate({prompt("", state)}, greedy(5)).at(0).ids, std::vector<int64_t>(whole.begin() + 9, whole.end()));
  based_state_free(state);
}

TEST_F(CInterface, AGenerationIsStoppedFromAnotherThread) {
  const based_generation_options options = greedy(1000000);
  const std::array<based_prompt, 2> prompts{prompt("Once"), prompt("upon")};
  based_generation* generation = nullptr;
  ASSERT_EQ(based_generation_start(model_, prompts.data(), 2, &options, &generation), BASED_OK) << based_last_error();
  based_event event{};
  while (event.kind != BASED_EVENT_TEXT) ASSERT_EQ(based_generation_next(generation, &event), BASED_OK) << based_last_error();
  EXPECT_EQ(based_generation_stop(generation, 2), BASED_USAGE);
  based_status status = BASED_FAILED;
  std::thread([&] { status = based_generation_stop(generation, SIZE_MAX); }).join();
  EXPECT_EQ(status, BASED_OK);
  for (const Result& result : finish(generation, 2)) EXPECT_EQ(result.reason, "interrupted");
  based_state* state = nullptr;
  EXPECT_EQ(based_generation_state(generation, 0, &state), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("keep_states"));
  based_generation_free(generation);
}

TEST_F(CInterface, ATextEndsBeforeAStopString) {
  const std::string text = generate({prompt("Once")}, greedy(20)).at(0).text;
  ASSERT_GE(text.size(), 4U);
  const std::string stop = text.substr(2, 2);
  const char* const stops[] = {stop.c_str()};
  based_generation_options options = greedy(20);
  options.stops = stops;
  options.stop_count = 1;
  const Result result = generate({prompt("Once")}, options).at(0);
  EXPECT_EQ(result.reason, "stop");
  EXPECT_EQ(result.text, text.substr(0, text.find(stop)));
}

TEST_F(CInterface, ScoresAsAScorerDoes) {
  const TextModel loaded = load_text_model(path());
  const std::vector<int64_t> context = encode_ids(*loaded.tokenizer, "Once upon"), rest = encode_ids(*loaded.tokenizer, " a time");
  std::vector<float> scores(rest.size());
  std::array<based_score_request, 2> requests{{{context.data(), 1, context.data() + 1, context.size() - 1, nullptr, 0, 0},
                                               {context.data(), context.size(), rest.data(), rest.size(), scores.data(), 0, 0}}};
  ASSERT_EQ(based_score(model_, requests.data(), requests.size(), nullptr, nullptr), BASED_OK) << based_last_error();
  Scorer scorer(*loaded.model, *loaded.tokenizer, {});
  const std::vector<ScoreRequest> same{{{context[0]}, {context.begin() + 1, context.end()}}, {context, rest}};
  const std::vector<ContinuationScore> wanted = scorer.score(same);
  EXPECT_EQ(requests[0].log_likelihood, wanted[0].log_likelihood);
  EXPECT_EQ(requests[1].log_likelihood, wanted[1].log_likelihood);
  EXPECT_EQ(scores, wanted[1].log_probabilities);
  EXPECT_EQ(requests[1].greedy != 0, wanted[1].greedy);
  requests[0].context_count = 0;
  EXPECT_EQ(based_score(model_, requests.data(), requests.size(), nullptr, nullptr), BASED_USAGE);
  EXPECT_THAT(based_last_error(), HasSubstr("number 0"));
}

// A callback stops the call, and the model can be used afterwards.
TEST_F(CInterface, CallbacksStopLongCalls) {
  const std::string text(3000, 'a');
  const std::vector<int64_t> ids(text.begin(), text.end());
  const based_progress stop = [](void* calls, int64_t) { return ++*static_cast<int*>(calls); };
  int calls = 0;
  const based_prompt given = prompt(text);
  based_state* state = nullptr;
  EXPECT_EQ(based_state_read(model_, &given, stop, &calls, &state), BASED_FAILED);
  EXPECT_THAT(based_last_error(), HasSubstr("callback stopped"));
  based_score_request request{ids.data(), 1, ids.data() + 1, ids.size() - 1, nullptr, 0, 0};
  EXPECT_EQ(based_score(model_, &request, 1, stop, &calls), BASED_FAILED);
  EXPECT_THAT(based_last_error(), HasSubstr("callback stopped"));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(state, nullptr);
  EXPECT_EQ(based_score(model_, &request, 1, nullptr, nullptr), BASED_OK) << based_last_error();
}

// The example in C, a program of its own that is linked to libbased.so.
#ifdef BASED_C_EXAMPLE
std::string output_of(const std::string& arguments) {
  std::FILE* const pipe = popen((std::string(BASED_C_EXAMPLE) + " " + arguments).c_str(), "r");
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << arguments;
  return output;
}

TEST_F(CInterface, TheExampleContinuesATextInTwoCalls) {
  const std::string state = folder_->file("example.state");
  const std::string first = generate({prompt("Once")}, greedy(40)).at(0).text, both = generate({prompt("Once")}, greedy(80)).at(0).text;
  EXPECT_EQ(output_of(path() + " " + state + " Once"), first + "\n");
  EXPECT_EQ(output_of(path() + " " + state), both.substr(first.size()) + "\n");
}
#endif

}  // namespace c_interface_test
}  // namespace based

// `based generate` and `based state`: models whose logits are not finite, the text of a saved state, and messages about few tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "based/core/state_file.h"
#include "tests/apps/small_model.h"

namespace based {
namespace generate_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Generate : public SmallModel {
 protected:
  static void SetUpTestSuite() {
    train_model(kTwoLayers + R"([optimizer]
learning_rate = 1e-2
[train]
steps = 60
batch = 4
length = 32
evaluate_every = 0
evaluate_batches = 1
[data]
bpe_vocab_size = 300
)");
  }

  // A copy of the model in which every weight whose name contains `part` is filled with `value`; with `first_row` only its first row.
  std::string damaged(const std::string& part, float value, bool first_row = false, const std::string& model = shared("m")) {
    const std::string copy = file("damaged");
    fs::remove_all(copy);
    fs::copy(model, copy, fs::copy_options::recursive);
    const SafetensorsFile weights(model + "/model.safetensors");
    std::vector<TensorView> views = weights.tensors();
    std::vector<std::vector<float>> changed;
    changed.reserve(views.size());
    for (TensorView& view : views) {
      if (view.name.find(part) == std::string::npos) continue;
      auto& numbers = changed.emplace_back(view.bytes.size() / sizeof(float));
      std::memcpy(numbers.data(), view.bytes.data(), view.bytes.size());
      const size_t count = first_row ? numbers.size() / static_cast<size_t>(view.shape[0]) : numbers.size();
      std::fill_n(numbers.begin(), count, value);
      view.bytes = std::as_bytes(std::span(numbers));
    }
    EXPECT_FALSE(changed.empty()) << part;
    write_safetensors(copy + "/model.safetensors", views, weights.metadata());
    return copy;
  }
};

TEST_F(Generate, EveryCommandThatRunsAModelRefusesOneWhoseLogitsAreNotFinite) {
  write_file_atomic(file("p.jsonl"), "{\"prompt\":\"the cat\"}\n{\"prompt\":\"mat\",\"max_tokens\":0}\n");
  ASSERT_EQ(run("state save " + file("whole.state") + " --prompt 'the cat' --model " + shared("m")).code, 0);
  const std::vector<std::string> commands{"generate --prompt 'the cat' --max-tokens 3",
                                          "generate --prompt 'the cat' --max-tokens 3 --stream --json",
                                          "generate --prompt 'the cat' --max-tokens 0",
                                          "generate --prompt 'the cat' --max-tokens 3 --save-state " + file("new.state"),
                                          "generate --prompt 'the cat' --max-tokens 0 --save-state " + file("new.state"),
                                          "generate --prompt t --max-tokens 0 --save-state " + file("new.state"),
                                          "generate --prompts " + file("p.jsonl"),
                                          "generate --prompts " + file("p.jsonl") + " --invariant --json --out " + file("out.jsonl"),
                                          "state save " + file("new.state") + " --prompt 'the cat'",
                                          "state save " + file("new.state") + " --prompt t",
                                          "perplexity --data " + shared("text.txt"),
                                          "bench decode --quick --threads 1",
                                          "mqar eval --length 32 --examples 20"};
  struct Damage {
    const char* part;
    float value;
    bool first_row;
  };
  // Damages either all outputs of a layer, or the embedding of one token that no prompt has, so that the prompts' states are finite.
  for (const Damage& damage : {Damage{"norm", 3e38F, false}, {"embedding", NAN, true}, {"embedding", INFINITY, true}}) {
    const std::string m = damaged(damage.part, damage.value, damage.first_row);
    for (const std::string& command : commands) {
      SCOPED_TRACE(std::string(damage.part) + ": " + command);
      const Ran ran = run(command + " --model " + m);
      EXPECT_EQ(ran.code, 1) << ran.err;
      EXPECT_THAT(ran.err + ran.out + (fs::exists(file("out.jsonl")) ? read_file(file("out.jsonl")) : ""),
                  testing::AnyOf(HasSubstr("not finite"), HasSubstr("not a number")));
      EXPECT_THAT(ran.err, Not(HasSubstr("its state was not kept")));
      EXPECT_THAT(ran.err, Not(HasSubstr("2 of 2 prompts")));
      EXPECT_FALSE(fs::exists(file("new.state")));
      fs::remove(file("out.jsonl"));
    }
  }
  const std::string theory = "theory mqar --n 3 --vocab 16 --inputs 0 --examples 8 --out ";
  ASSERT_EQ(run(theory + file("solver")).code, 0);
  const Ran solver = run(theory + file("new") + " --model " + damaged("embedding", NAN, false, file("solver")));
  EXPECT_EQ(solver.code, 1);
  EXPECT_THAT(solver.err, HasSubstr("not finite"));
  EXPECT_FALSE(fs::exists(file("new")));
  const std::string m = damaged("norm", NAN);
  EXPECT_THAT(run("inspect " + m).out, HasSubstr("NOT FINITE"));
  EXPECT_THAT(run("inspect --json " + m).out, HasSubstr("norm"));
  EXPECT_EQ(parse_json(run("inspect --json " + shared("m")).out, "stdout")["not_finite"], Json::array());
}

// Earlier versions of the program wrote such states, because they did not check them.
TEST_F(Generate, AStateThatIsNotFiniteIsRefused) {
  ASSERT_EQ(run("state save " + file("a.state") + " --prompt 'the cat' --model " + shared("m")).code, 0);
  const StateFile whole(file("a.state"));
  StateSnapshot snapshot = whole.snapshot();
  std::vector<float> numbers;
  std::string name;
  for (TensorView& view : snapshot.tensors) {
    if (view.dtype != DType::F32) continue;
    numbers.assign(view.bytes.size() / sizeof(float), NAN);
    view.bytes = std::as_bytes(std::span(numbers));
    name = view.name;
    break;
  }
  ASSERT_FALSE(name.empty());
  write_state_file(file("nan.state"), snapshot);
  for (const std::string& command : {"state load " + file("nan.state"), "generate --max-tokens 2 --state " + file("nan.state"),
                                     "generate --max-tokens 2 --state " + file("nan.state") + " --save-state " + file("new.state")}) {
    const Ran ran = run(command + " --model " + shared("m"));
    EXPECT_EQ(ran.code, 1) << command;
    EXPECT_THAT(ran.err, HasSubstr("nan.state: tensor '" + name + "' is not finite")) << command;
    EXPECT_FALSE(fs::exists(file("new.state")));
  }
  EXPECT_THAT(run("state info " + file("nan.state")).out, HasSubstr("NOT FINITE"));
}

TEST_F(Generate, AnEmptyPromptIsNotAnAbsentOne) {
  const std::string m = " --model " + shared("m");
  const Ran empty = run("generate --prompt ''" + m), absent = run("generate" + m), saved = run("state save x --prompt ''" + m);
  for (const Ran* ran : {&empty, &absent, &saved}) EXPECT_EQ(ran->code, 2);
  EXPECT_THAT(empty.err, HasSubstr("--prompt is empty: generation needs at least one token"));
  EXPECT_THAT(absent.err, HasSubstr("generate needs --prompt TEXT, --state FILE or --prompts FILE"));
  EXPECT_THAT(saved.err, HasSubstr("--prompt is empty: a state is saved after at least one token"));
  ASSERT_EQ(run("state save " + file("a.state") + " --prompt 'the cat'" + m).code, 0);
  EXPECT_EQ(run("generate --prompt '' --max-tokens 2 --state " + file("a.state") + m).code, 0) << "nothing is added to the state's text";
  for (const char* option : {"--prompts", "--state", "--save-state", "--out"}) {
    const Ran ran = run("generate --prompt cat " + std::string(option) + " ''" + m);
    EXPECT_EQ(ran.code, 2) << option;
    EXPECT_THAT(ran.err, HasSubstr(std::string(option) + " must not be empty"));
  }
  EXPECT_THAT(run("generate --prompt cat --model ''").err, HasSubstr("--model must not be empty"));
}

TEST_F(Generate, FewTokensAreCountedAsTheyAre) {
  const std::string command = "generate --prompt 'the cat' --model " + shared("m") + " --max-tokens ";
  const Ran none = run(command + "0"), one = run(command + "1 --temperature 0"), two = run(command + "2 --temperature 0");
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.err, AllOf(HasSubstr(" tokens of prompt in "), Not(HasSubstr("then")), Not(HasSubstr("first token"))));
  EXPECT_THAT(one.err, AllOf(HasSubstr(" tokens of prompt and the first token in "), Not(HasSubstr("then"))));
  EXPECT_THAT(two.err, HasSubstr(", then 1 tokens at "));
}

TEST_F(Generate, ALongPromptShowsHowMuchOfItIsRead) {
  std::string text;
  for (int i = 0; i < 900; ++i) text += "the cat sat ";
  write_file_atomic(file("p.jsonl"), "{\"prompt\":\"" + text + "\"}\n");
  const std::string m = " --model " + shared("m");
  for (const std::string& command : {"generate --max-tokens 2 --temperature 0 --prompt '" + text + "'" + m,
                                     "state save " + file("a.state") + " --prompt '" + text + "'" + m})
    EXPECT_THAT(run(command).err, testing::ContainsRegex("prompt tokens  100 %  [0-9]+/[0-9]+"));
  EXPECT_THAT(run("generate --max-tokens 2 --prompts " + file("p.jsonl") + m).err,
              testing::ContainsRegex("prompt tokens [0-9.]+k of [0-9.]+k"));
  EXPECT_THAT(run("generate --max-tokens 2 --prompt cat" + m).err, Not(HasSubstr("prompt tokens")));
}

// Tokens and the state's bytes are those without --draft; a stop string ends the text within a draft, too.
TEST_F(Generate, DraftsChangeNeitherTextNorState) {
  const std::string m = " --model " + shared("m"), state = file("a.state");
  for (const char* options : {" --temperature 0", " --temperature 0 --stop mat", " --temperature 0.7 --seed 3 --repetition-penalty 1.1"}) {
    const std::string command = "generate --prompt 'the cat number 3' --max-tokens 60 --json --save-state " + state + m + options;
    const Ran plain = run(command);
    ASSERT_EQ(plain.code, 0) << plain.err;
    const Json expected = parse_json(plain.out, "stdout");
    const std::string bytes = read_file(state);
    for (const std::string& draft : {std::string("ngram"), std::string("none"), shared("m") + " --draft-tokens 3"}) {
      const Ran ran = run(command + " --draft " + draft);
      ASSERT_EQ(ran.code, 0) << ran.err;
      const Json made = parse_json(ran.out, "stdout");
      EXPECT_EQ(made["ids"], expected["ids"]) << options << draft;
      EXPECT_EQ(made["text"], expected["text"]) << options << draft;
      EXPECT_EQ(read_file(state), bytes) << options << draft;
      const Json& counts = made["draft"];
      EXPECT_GE(counts["steps"].get<size_t>() + counts["accepted_tokens"].get<size_t>(), expected["ids"].size()) << ran.out;
      EXPECT_THAT(ran.err, testing::ContainsRegex("[0-9]+ of [0-9]+ drafted tokens accepted, [0-9.]+ tokens a step"));
    }
  }
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += R"({"prompt":"the cat number )" + std::to_string(i) + "\"}\n";
  write_file_atomic(file("p.jsonl"), lines);
  const std::string many = "generate --invariant --slots 2 --max-tokens 40 --prompts " + file("p.jsonl") + m;
  EXPECT_EQ(run(many + " --draft ngram").out, run(many).out);
  const Ran nowhere = run("generate --prompt cat --draft " + file("nowhere") + m);
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("nowhere: is no folder; --draft must be ngram, none or the folder of a model"));
  for (const auto& [options, message] :
       {std::pair{" --draft-tokens 3", "--draft-tokens requires --draft"}, std::pair{" --draft ''", "--draft must not be empty"}}) {
    const Ran wrong = run("generate --prompt cat" + m + options);
    EXPECT_EQ(wrong.code, 2) << options;
    EXPECT_THAT(wrong.err, HasSubstr(message));
  }
}

// With --save-state-before-stop the state has read the prompt and the printed text, not the stop.
TEST_F(Generate, TheStateBeforeAStopHoldsThePrintedText) {
  const std::string m = " --model " + shared("m"), state = file("a.state");
  const std::string command = "generate --prompt 'the cat' --temperature 0 --max-tokens 24 --json" + m;
  const auto text_of = [](const Ran& ran) {
    EXPECT_EQ(ran.code, 0) << ran.err;
    return parse_json(ran.out, "stdout")["text"].get<std::string>();
  };
  const std::string whole = text_of(run(command));
  ASSERT_GT(whole.size(), 12U);
  int stops = 0;
  for (size_t at = 0; at + 2 < whole.size() && stops < 8; ++at) {
    const std::string stop = whole.substr(at, 2);
    if (whole.find(stop) != at || stop.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789 ") != std::string::npos) continue;
    SCOPED_TRACE(stop);
    ++stops;
    const std::string stopped = command + " --stop '" + stop + "' --save-state " + state;
    const Ran with = run(stopped);
    EXPECT_EQ(text_of(with), whole.substr(0, at));
    EXPECT_THAT(with.err, HasSubstr("it holds the tokens of the stop, too, which --save-state-before-stop leaves out"));
    EXPECT_THAT(run("state load " + state + m).out, HasSubstr("the cat" + whole.substr(0, at) + stop));
    const Ran before = run(stopped + " --save-state-before-stop");
    EXPECT_EQ(text_of(before), whole.substr(0, at));
    EXPECT_THAT(before.err, Not(HasSubstr("it holds")));
    EXPECT_EQ(run("state load " + state + m).out, "the cat" + whole.substr(0, at) + "\n");
    EXPECT_EQ(run("generate --max-tokens 3 --temperature 0 --state " + state + m).code, 0);
    // The same with --state.
    ASSERT_EQ(run("state save " + file("b.state") + " --prompt 'the '" + m).code, 0);
    const Ran continued = run("generate --prompt cat --temperature 0 --max-tokens 24 --json --state " + file("b.state") + " --stop '" +
                              stop + "' --save-state-before-stop --save-state " + state + m);
    EXPECT_EQ(run("state load " + state + m).out, "the cat" + text_of(continued) + "\n");
  }
  EXPECT_GE(stops, 3) << whole;
  const std::string plain = command + " --save-state " + state;
  ASSERT_EQ(run(plain).code, 0);
  const std::string bytes = read_file(state);
  ASSERT_EQ(run(plain + " --save-state-before-stop").code, 0);
  EXPECT_EQ(read_file(state), bytes) << "no stop came: there is nothing to leave out";
  EXPECT_EQ(run(command + " --save-state-before-stop").code, 2) << "it goes with --save-state";
}

}  // namespace generate_test
}  // namespace based

// `--invariant`: the result for a text does not depend on how the text was split between states and prompts, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/json.h"
#include "tests/apps/small_model.h"

namespace based {
namespace invariant_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Invariant : public SmallModel {
 protected:
  static void SetUpTestSuite() {
    train_model(R"([model]
d_model = 32
layers = ["taylor_attention", "sliding_window", "attention"]
[train]
steps = 3
batch = 2
length = 32
[data]
tokenizer = "bytes"
)");
  }

  // The JSON that `generate` prints; an empty object if it fails.
  static Json result(const std::string& arguments) {
    const Ran ran = run("generate --invariant --logprobs --json --seed 5 --max-tokens 70 --model " + shared("m") + " " + arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? parse_json(ran.out, "output") : Json::object();
  }
  static void expect_same(const Json& a, const Json& b, const std::string& what) {
    for (const char* field : {"text", "ids", "log_probabilities", "prompt_tokens"}) EXPECT_EQ(a[field], b[field]) << what << ": " << field;
  }
};

const std::string kText =
    "the cat number 37 sat on the mat and the cat number 74 sat on the other mat while the cat number 10 was nowhere to be seen on any mat "
    "of them all";

TEST_F(Invariant, ASavedStateAndTheRestGiveWhatTheWholeTextGives) {
  const Json whole = result("--prompt '" + kText + "' --save-state " + file("whole.state"));
  for (const size_t cut : {size_t{1}, size_t{40}, size_t{64}, size_t{65}, size_t{100}, kText.size() - 1}) {
    const std::string first = kText.substr(0, cut), rest = kText.substr(cut), name = std::to_string(cut);
    const Ran saved = run("state save " + file("cut.state") + " --invariant --model " + shared("m") + " --prompt '" + first + "'");
    ASSERT_EQ(saved.code, 0) << saved.err;
    expect_same(result("--state " + file("cut.state") + " --prompt '" + rest + "' --save-state " + file("both.state")), whole, name);
    EXPECT_EQ(read_file(file("both.state")), read_file(file("whole.state"))) << name;
  }
}

// A prompt, the model's answer and a second prompt give the same result as all of it in one prompt.
TEST_F(Invariant, AConversationGivesWhatItsTranscriptGives) {
  const Json first = result("--prompt '" + kText + "' --save-state " + file("first.state"));
  const Json second = result("--state " + file("first.state") + " --prompt ' and then' --save-state " + file("second.state"));
  write_file_atomic(file("ids.jsonl"), "");
  std::vector<int64_t> ids(kText.begin(), kText.end());
  for (const Json& id : first["ids"]) ids.push_back(id.get<int64_t>());
  for (const char c : std::string(" and then")) ids.push_back(c);
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += dump_json({{"prompt", kText.substr(0, 30 * i + 1)}}) + "\n";
  write_file_atomic(file("ids.jsonl"), lines + dump_json({{"ids", ids}, {"seed", 5}}) + "\n");
  for (const char* slots : {"1", "4"}) {
    const Ran ran = run("generate --invariant --logprobs --max-tokens 70 --model " + shared("m") + " --prompts " + file("ids.jsonl") +
                        " --slots " + slots);
    ASSERT_EQ(ran.code, 0) << ran.err;
    const size_t last = ran.out.rfind('\n', ran.out.size() - 2) + 1;
    expect_same(parse_json(ran.out.substr(last), "output"), second, slots);
  }
}

// If a state was saved without --invariant, only its text is used, and a message says so.
TEST_F(Invariant, AStateSavedWithoutItIsReadAgain) {
  const Json whole = result("--prompt '" + kText + "'");
  const std::string first = kText.substr(0, 100), rest = kText.substr(100);
  const auto message = [&](const std::string& more) {
    EXPECT_EQ(run("state save " + file("a.state") + more + " --model " + shared("m") + " --prompt '" + first + "'").code, 0);
    expect_same(result("--state " + file("a.state") + " --prompt '" + rest + "'"), whole, more);
    return run("generate --invariant --max-tokens 1 --model " + shared("m") + " --state " + file("a.state")).err;
  };
  const std::string says = file("a.state") + ": was not saved with --invariant";
  EXPECT_THAT(message(""), HasSubstr(says));
  EXPECT_THAT(message(" --invariant"), Not(HasSubstr(says)));
  const Ran info = run("state info " + file("a.state"));
  EXPECT_THAT(info.out, HasSubstr("cells: 64 tokens, F32, cpu"));
  EXPECT_EQ(parse_json(run("state info --json " + file("a.state")).out, "output")["metadata"]["cells"], "64 tokens, F32, cpu");
  const Ran plain = run("generate --max-tokens 1 --model " + shared("m") + " --state " + file("a.state"));
  EXPECT_EQ(plain.code, 0) << plain.err;
}

}  // namespace invariant_test
}  // namespace based

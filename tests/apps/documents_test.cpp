// The completion scripts and the manual page, which are made from the commands: shells and man accept them, and they leave nothing out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/apps/commands.h"
#include "tests/apps/program.h"

namespace based {
namespace documents_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;
using Words = std::vector<std::string>;

// Runs a shell command; its messages are part of the output.
Ran shell(const std::string& command) {
  const TemporaryFolder folder;
  Ran ran;
  ran.code = WEXITSTATUS(std::system(("{ " + command + "; } >" + folder.file("out") + " 2>&1").c_str()));
  ran.out = read_file(folder.file("out"));
  return ran;
}

bool installed(const std::string& program) { return shell("command -v " + program).code == 0; }

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The names "--option" of a command, as its --help lists them.
const Words& options_of(const std::string& command) {
  static std::map<std::string, Words> known;
  if (known.contains(command)) return known.at(command);
  Words& options = known[command];
  for (const std::string& line : lines_of(run(command + " --help").out)) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (line.starts_with("  --")) options.push_back(first);
  }
  return options;
}

class BashCompletion : public testing::Test {
 protected:
  void SetUp() override {
    const Ran ran = run("completion bash");
    ASSERT_EQ(ran.code, 0) << ran.err;
    write_file_atomic(folder_.file("script"), ran.out);
    write_file_atomic(folder_.file("model one.toml"), "");
    write_file_atomic(folder_.file("model"), "");
  }

  // The answers of one bash to several command lines, whose last word is completed. bash would call the function in the same way.
  std::vector<Words> completed(const std::vector<Words>& command_lines) const {
    std::string text = "source ./script || exit 1\n";
    for (const Words& words : command_lines) {
      text += "COMP_WORDS=(based";
      for (const std::string& word : words) text += " '" + word + "'";
      text += ") COMP_CWORD=" + std::to_string(words.size()) +
              "\n_based\n((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\"\necho ---\n";
    }
    write_file_atomic(folder_.file("questions"), text);
    const Ran ran = shell("cd " + folder_.path().string() + " && bash questions");
    EXPECT_EQ(ran.code, 0) << ran.out;
    std::vector<Words> answers(1);
    for (const std::string& line : lines_of(ran.out)) {
      if (line == "---")
        answers.emplace_back();
      else
        answers.back().push_back(line);
    }
    answers.pop_back();
    std::for_each(answers.begin(), answers.end(), [](Words& words) { std::sort(words.begin(), words.end()); });
    return answers;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(BashCompletion, CompletesCommandsOptionsChoicesAndFiles) {
  const std::vector<Words> answers = completed({{"gen"},
                                                {"tokenize", ""},
                                                {"generate", "--dev"},
                                                {"state", "save", "--mod"},
                                                {"generate", "--device", ""},
                                                {"generate", "--prompt", "train", "--dtype", "=", "bf"},
                                                {"generate", "--dtype", "="},
                                                {"generate", "--max-tokens", ""},
                                                {"mqar", "generate", "--random-fillers", "t"},
                                                {"generate", "--model", "mod"},
                                                {"generate", "--model=model\\ o"},
                                                {"generate", "--model", "model\\ o"},
                                                {"train", "\"model o"},
                                                {"generate", "--draft", "n"},
                                                {"presets", "based-t"},
                                                {"completion", "z"},
                                                {"eval", "--model", "compare", "ta"},
                                                {"nonsense", ""}});
  const std::vector<Words> wanted{{"generate"},
                                  {"decode", "encode", "inspect", "train"},
                                  {"--device"},
                                  {"--model"},
                                  {"cpu", "cuda"},
                                  {"bf16"},
                                  {"bf16", "fp32", "fp64"},
                                  {},
                                  {"true"},
                                  {"model", "model one.toml"},
                                  {},  // bash itself splits this word at "="
                                  {"model one.toml"},
                                  {"model one.toml"},
                                  {"ngram", "none"},
                                  {"based-tiny"},
                                  {"zsh"},
                                  {"table"}};
  ASSERT_EQ(answers.size(), wanted.size() + 1);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(answers[i], wanted[i]) << "command line " << i;
  EXPECT_THAT(answers.back(), Contains("generate")) << "after a word that is no command, commands are offered";
}

TEST_F(BashCompletion, OffersEveryOptionOfEveryCommand) {
  std::vector<Words> command_lines, wanted;
  for (const CommandRow& row : command_rows()) {
    std::istringstream words(row.name);
    Words line;
    for (std::string word; words >> word;) line.push_back(word);
    line.emplace_back("--");
    if (std::find(command_lines.begin(), command_lines.end(), line) != command_lines.end()) continue;
    command_lines.push_back(line);
    wanted.push_back(options_of(row.name));
    wanted.back().emplace_back("--help");
    std::sort(wanted.back().begin(), wanted.back().end());
  }
  EXPECT_EQ(completed(command_lines), wanted);
}

TEST(Completion, OfEachShellIsAScript) {
  const TemporaryFolder folder;
  for (const auto& [name, check] : {std::pair{"bash", "bash -n "}, std::pair{"zsh", "zsh -n "}, std::pair{"fish", "fish --no-execute "}}) {
    const Ran script = run(std::string("completion ") + name);
    ASSERT_EQ(script.code, 0) << script.err;
    for (const char* word : {"generate", "tokenize", "--temperature", "bf16"})
      EXPECT_THAT(script.out, HasSubstr(std::string(word) == "--temperature" && std::string(name) == "fish" ? "-l temperature" : word))
          << name;
    if (!installed(name)) continue;
    write_file_atomic(folder.file(name), script.out);
    const Ran checked = shell(check + folder.file(name));
    EXPECT_EQ(checked.code, 0) << checked.out;
    EXPECT_THAT(checked.out, IsEmpty());
  }
}

// The words of a line of zsh or fish, without their quotes. In single quotes, fish has the escapes \\ and \'; zsh has none. A line whose
// quotes do not end in it has the one word "unbalanced".
Words unquoted_words(const std::string& line, bool fish) {
  Words words;
  bool inside = false, in_word = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char letter = line[i];
    const bool escapes = letter == '\\' && i + 1 < line.size() && (!inside || (fish && (line[i + 1] == '\'' || line[i + 1] == '\\')));
    if (!inside && !escapes && letter == ' ') {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (escapes)
      words.back() += line[++i];
    else if (letter == '\'')
      inside = !inside;
    else
      words.back() += letter;
  }
  return inside ? Words{"unbalanced"} : words;
}

// The colons that separate the parts of a specification of zsh's _arguments; a colon inside of a part has a backslash.
int64_t separating_colons(const std::string& specification) {
  int64_t count = 0;
  for (size_t i = 0; i < specification.size(); ++i) {
    if (specification[i] == '\\')
      ++i;
    else if (specification[i] == ':')
      ++count;
  }
  return count;
}

TEST(Completion, OfZshHasEveryOptionOfEveryCommandInASpecification) {
  const std::string script = run("completion zsh").out;
  for (const CommandRow& row : command_rows()) {
    std::string function = "\n_based_" + row.name + "() {\n";
    std::replace(function.begin(), function.end() - 4, ' ', '_');
    const size_t begin = script.find(function);
    ASSERT_NE(begin, std::string::npos) << row.name;
    Words found;
    for (const std::string& line : lines_of(script.substr(begin, script.find("\n}\n", begin) - begin))) {
      if (!line.starts_with("    '") || line.starts_with("    '1: ")) continue;  // '1: :->command' '*:: :->arguments'
      for (const std::string& word : unquoted_words(line, false)) {
        ASSERT_NE(word, "unbalanced") << line;
        const size_t option = word.find("--"), end = word.find_first_of("=[", option);
        const bool has_name = word.starts_with("--") || word.starts_with("*--");
        if (has_name) found.push_back(word.substr(option, end - option));
        // [*]--option[help], [*]--option=[help]:message:action, [:]:message:action or *:message:action
        if (has_name) {
          EXPECT_EQ(separating_colons(word), word[end] == '=' ? 2 : 0) << word;
        } else if (word.starts_with(':') || word.starts_with('*')) {
          EXPECT_EQ(separating_colons(word), word.starts_with("::") ? 3 : 2) << word;
        }
      }
    }
    EXPECT_THAT(found, UnorderedElementsAreArray(options_of(row.name))) << row.name;
  }
}

// zsh refuses a call of _arguments with two specifications of the rest of the words.
TEST(Completion, OfZshHasOneRestOfWordsInACall) {
  const std::string script = run("completion zsh").out;
  size_t calls = 0;
  for (size_t begin = script.find("_arguments -S"); begin != std::string::npos; begin = script.find("_arguments -S", begin + 1)) {
    size_t end = script.find('\n', begin), rests = 0;
    while (script[end - 1] == '\\') end = script.find('\n', end + 1);
    for (const std::string& word : unquoted_words(script.substr(begin, end - begin), false)) rests += word.starts_with("*:") ? 1 : 0;
    EXPECT_LE(rests, 1U) << script.substr(begin, end - begin);
    ++calls;
  }
  EXPECT_GT(calls, command_rows().size() / 2);
}

TEST(Completion, OfFishHasEveryOptionOfEveryCommand) {
  std::map<std::string, Words> found;  // by the condition, which names the command
  for (const std::string& line : lines_of(run("completion fish").out)) {
    const Words words = unquoted_words(line, true);
    ASSERT_NE(words, Words{"unbalanced"}) << line;
    for (size_t i = 5; i + 1 < words.size() && line.starts_with("complete -c based -n "); ++i) {
      if (words[i] == "-l" && words[i + 1] != "help") found[words[4]].push_back("--" + words[i + 1]);
      if (words[i] == "-d") {
        EXPECT_EQ(i + 2, words.size()) << line;  // the description is one word, the last
      }
    }
  }
  for (const CommandRow& row : command_rows())
    EXPECT_THAT(found["__based_command_is based " + row.name], UnorderedElementsAreArray(options_of(row.name))) << row.name;
}

TEST(Completion, OfAnUnknownShellIsRefused) {
  const Ran ran = run("completion tcsh");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("shell must be bash, zsh or fish, got 'tcsh'"));
}

TEST(ManualPage, DescribesEveryOptionOfEveryCommand) {
  const Ran page = run("man");
  ASSERT_EQ(page.code, 0) << page.err;
  // Minus signs are escaped, so that they are not shown as hyphens.
  const auto escaped = [](const std::string& text) {
    std::string result;
    for (const char letter : text) result += letter == '-' ? std::string("\\-") : std::string(1, letter);
    return result;
  };
  for (const CommandRow& row : command_rows()) {
    const std::string heading = "\n.SS " + escaped("based " + row.name) + "\n";
    const size_t begin = page.out.find(heading);
    ASSERT_NE(begin, std::string::npos) << row.name;
    const size_t next = page.out.find("\n.S", begin + heading.size());
    const std::string section = page.out.substr(begin, next - begin);
    for (const std::string& option : options_of(row.name))
      EXPECT_THAT(section, HasSubstr(".TP\n\\fB" + escaped(option) + "\\fR")) << row.name;
  }
  EXPECT_THAT(page.out, AllOf(HasSubstr("\n.SH NAME\n"), HasSubstr("\n.SH EXIT STATUS\n"), Not(HasSubstr("\xe2\x80\xa6"))));
}

TEST(ManualPage, IsFormattedWithoutAWarning) {
  if (!installed("groff")) GTEST_SKIP() << "groff is not installed";
  const TemporaryFolder folder;
  write_file_atomic(folder.file("based.1"), run("man").out);
  const Ran formatted = shell("groff -ww -man -Tutf8 " + folder.file("based.1") + " >" + folder.file("text"));
  EXPECT_EQ(formatted.code, 0);
  EXPECT_THAT(formatted.out, IsEmpty());
  EXPECT_NE(read_file(folder.file("text")).find("Continue prompts from a recurrent state."), std::string::npos);
}

}  // namespace documents_test
}  // namespace based

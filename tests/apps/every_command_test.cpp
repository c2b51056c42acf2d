// The same tests for every subcommand: standard output cannot be written, a signal arrives, an option's value is wrong, an input
// is not a file, empty, endless, or a pipe without a writer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/apps/commands.h"
#include "tests/apps/program.h"
#include "tests/apps/published_mamba.h"

namespace based {
namespace every_command_test {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSeconds = 20;                 // limit for every test
constexpr rlim_t kMemory = rlim_t{3} << 29;  // 1.5 GiB: more than any input needs
constexpr off_t kHuge = off_t{1} << 40;      // size of a sparse file

std::string lines(const std::string& line, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line;
  return text;
}

// The entries of --help under `heading`: the first and the second word of each line.
std::vector<std::pair<std::string, std::string>> listed(const std::string& help, const std::string& heading) {
  std::vector<std::pair<std::string, std::string>> found;
  std::istringstream text(help.substr(std::min(help.size(), help.find("\n" + heading + ":\n") + heading.size() + 3)));
  for (std::string line; std::getline(text, line) && !line.empty();) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (line.starts_with("  ") && line[2] != ' ') found.emplace_back(first, second);
  }
  return help.find("\n" + heading + ":\n") == std::string::npos ? std::vector<std::pair<std::string, std::string>>() : found;
}

class EveryCommand : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  void SetUp() override {
    setenv("OMP_NUM_THREADS", "1", 1);  // because several programs run at once; the fork server is started with it
    write_file_atomic(file("text.txt"), lines("the cat sat on the mat and looked at the other cat\n", 40));
    write_file_atomic(file("lines.jsonl"), lines("{\"text\":\"the cat sat on the mat\"}\n", 40));
    write_file_atomic(file("ids.jsonl"), lines("{\"ids\":[1,2,3]}\n", 40));
    write_file_atomic(file("run.toml"), "[model]\nd_model = 8\nlayers = [\"gated_conv\"]\nmlp_width = 8\n[data]\ntrain = \"" +
                                            file("text.txt") + "\"\ntokenizer = \"" + file("bpe") +
                                            "\"\n[train]\nbatch = 2\nlength = 16\nevaluate_batches = 1\nsteps = 2\n");
    write_file_atomic(
        file("sweep.toml"),
        "kind = \"recall\"\n[task]\nvocab_size = 64\ntrain = [{length = 32, pairs = 4, examples = 8}]\ntest = [{length = 32, pairs = 4, "
        "examples = 8}]\n[training]\nbatch = 4\n[[series]]\nname = \"one\"\n[series.model]\nd_model = 8\nlayers = "
        "[\"gated_conv\"]\nmlp_width = 8\n");
    fs::copy_file(BASED_SOURCE_DIR "/tests/goldens/based/base_conv_k4_e2_bias1_L37.safetensors", file("golden.safetensors"));
    write_file_atomic(file("slices.json"),
                      R"({"length": 2, "threshold": 0, "train": [1, 2], "windows": [[1, 1, 1]], "labels": [[1, 1]], "nats": [[1, 2]],
                      "expected": {"mask": [[0, 1]], "all": {"tokens": 2, "nats": 3, "perplexity": 4.4816890703380645},
                      "ar": {"tokens": 1, "nats": 2, "perplexity": 7.38905609893065},
                      "other": {"tokens": 1, "nats": 1, "perplexity": 2.718281828459045}, "ar_share": 0.5}})");
    write_file_atomic(file("eval.json"),
                      R"({"run": {}, "complete": true, "tasks": [{"task": "piqa", "num_fewshot": 0,
                      "headline": "acc", "chance": 0.5, "comparable": true, "tied": 0,
                      "aggregate": {"acc": {"value": 0.5, "stderr": 0.5}}, "per_document": [{"doc": 0, "acc": 1}, {"doc": 1, "acc": 0}]}]})");
    write_file_atomic(file("own.jsonl"), lines("{\"text\":\"the cat sat on\",\"label\":1}\n", 4));
    write_file_atomic(file("own.toml"),
                      "data = \"own.jsonl\"\ncontext = \"{text}\"\nchoices = [\"a mat\", \"the mat\"]\ngold = \"label\"\n");
    write_winogrande("sets", 40);
    write_published_mamba(file("published"));
    write_file_atomic(file("dna.fa"), ">one\n" + lines("ACGTTGCAACGGTAACCGTNACGTACGT\n", 20));
    write_file_atomic(file("dna.bed"), "one\t0\t400\ttrain\none\t400\t500\tvalid\n");
    write_file_atomic(file("classes.csv"), "sequence,label\n" + lines("ACGTACGTAC,0\nGGTTGGTTGG,1\n", 4));
    works("tokenize train @/text.txt --vocab-size 300 --special <|endoftext|> --out @/bpe");
    works("train @/run.toml --out @/model");
    works("state save @/a.state --model @/model --prompt the");
    works("data pack @/lines.jsonl --tokenizer @/bpe --out @/shards");
    works("experiment run @/sweep.toml --device cpu --save-models --out @/sweep");
    for (const auto& entry : fs::directory_iterator(file("sweep/models"))) fs::rename(entry.path(), file("recall"));
  }

  std::vector<std::string> words(const std::string& arguments) {
    std::vector<std::string> found;
    std::istringstream text(arguments);
    for (std::string word; text >> word;) {
      if (word.starts_with("@/")) word = file(word.substr(2));
      if (word.starts_with("%")) word = new_path_ = file("new-" + std::to_string(files_++)) + word.substr(1);
      found.push_back(word);
    }
    return found;
  }
  // The arguments of a row without the marks of inputs.
  std::vector<std::string> words(const CommandRow& row) {
    std::string plain = row.name + " " + row.arguments;
    for (const char* mark : {"<@", "|@"})
      for (size_t at; (at = plain.find(mark)) != std::string::npos;) plain.erase(at, 1);
    return words(plain);
  }

  struct Running {
    std::string err;
    Started program;
  };
  Running start(const std::vector<std::string>& arguments, const std::string& out, const std::function<void()>& before = {}) {
    const std::string err = file("err-" + std::to_string(files_++));
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    return {err, Started(arguments, out, err, before, program_for("", line))};
  }
  // The same in a process of its own, which receives signals.
  Running start_process(const std::vector<std::string>& arguments, const std::string& out, const std::function<void()>& before = {}) {
    const std::string err = file("err-" + std::to_string(files_++));
    return {err, Started(arguments, out, err, before)};
  }
  // The program's messages and its exit code: 128 + the signal's number after a signal, -1 after the time limit.
  static Ran ended(const Running& running) {
    const int status = running.program.status_within(kSeconds);
    Ran ran;
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == SIGKILL ? -1 : 128 + WTERMSIG(status);
    ran.err = read_file(running.err);
    // Messages of the libraries, which name neither the option nor a remedy.
    for (const char* words : {"filesystem error", "json.exception", "terminate called", "std::"})
      EXPECT_THAT(ran.err, Not(HasSubstr(words)));
    return ran;
  }
  void works(const std::string& arguments) {
    const Ran ran = ended(start(words(arguments), "/dev/null"));
    ASSERT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
  }

  // A folder of data sets.
  void write_winogrande(const std::string& folder, int documents) const {
    fs::create_directories(file(folder + "/winogrande"));
    write_file_atomic(
        file(folder + "/winogrande/dev.jsonl"),
        lines("{\"sentence\":\"the cat sat on _ and looked\",\"option1\":\"a mat\",\"option2\":\"me\",\"answer\":\"1\"}\n", documents));
  }

  TemporaryFolder folder_;
  std::string new_path_;  // the path that replaced the last "%"
  int files_ = 0;
};

TEST(EveryCommandOfTheProgram, HasARow) {
  std::set<std::string> there, rows;
  for (const auto& [command, summary] : listed(run("--help").out, "Subcommands")) {
    const auto nested = listed(run(command + " --help").out, "Subcommands");
    const auto options = listed(run(command + " --help").out, "Options");
    const bool own = std::any_of(options.begin(), options.end(), [](const auto& option) { return option.first.starts_with("--"); });
    if (nested.empty() || own) there.insert(command);
    for (const auto& [name, more] : nested) there.insert(command + " " + name);
  }
  for (const CommandRow& row : command_rows()) rows.insert(row.name);
  EXPECT_GT(there.size(), 20U);
  EXPECT_EQ(rows, there) << "tests/apps/commands.h needs one row a subcommand";
}

TEST_F(EveryCommand, SaysThatStandardOutputCannotBeWritten) {
  const std::string file_out = file("out");
  for (const CommandRow& row : command_rows()) {
    SCOPED_TRACE(row.name);
    for (const char* how : {"full", "closed", "without a reader"}) {
      const auto before = [how] {
        int ends[2];
        if (std::string_view(how) == "closed") close(1);
        if (std::string_view(how) == "without a reader" && pipe(ends) == 0) dup2(ends[1], 1), close(ends[0]), close(ends[1]);
      };
      const Ran ran = ended(start(words(row), std::string_view(how) == "full" ? "/dev/full" : "/dev/null", before));
      EXPECT_EQ(ran.code, 1) << how << "\n" << ran.err;
      EXPECT_THAT(ran.err, HasSubstr("based: standard output cannot be written: ")) << how;
      EXPECT_TRUE(row.leaves.empty() || fs::exists(new_path_ + row.leaves)) << how;
    }
  }
}

// A command that does not catch signals has nothing to save: the signal ends it at once.
TEST_F(EveryCommand, ThatTakesLongEndsAtASignalAndSaysSo) {
  write_file_atomic(file("long.txt"), lines("the cat sat on the mat and looked at the other cat\n", 60'000));
  write_file_atomic(file("long.jsonl"), lines("{\"text\":\"the cat sat on the mat and looked at the other cat\"}\n", 1'000'000));
  write_winogrande("long", 50'000);
  for (const CommandRow& row : command_rows()) {
    if (row.lasting.empty()) continue;
    SCOPED_TRACE(row.name);
    for (const int signal : {SIGTERM, SIGHUP, SIGPIPE}) {
      std::vector<std::string> arguments = words(row);
      for (const std::string& word : words(row.lasting)) arguments.push_back(word);
      const Running running = start_process(arguments, file("out"));
      ASSERT_TRUE(running.program.catches(SIGTERM)) << ended(running).err;
      running.program.signal(signal);
      if (signal == SIGPIPE) running.program.signal(SIGTERM);  // it has ignored SIGPIPE
      const Ran ran = ended(running);
      EXPECT_EQ(ran.code, 1) << strsignal(signal) << "\n" << ran.err;
      EXPECT_THAT(ran.err, HasSubstr(row.stopped)) << strsignal(signal);
    }
  }
}

TEST_F(EveryCommand, RefusesBadValuesAndNamesTheOption) {
  const std::string number = "99999999999999999999";
  const std::map<std::string, std::vector<std::string>> bad{
      {"INT", {"x", number}}, {"NUMBER", {"nan", "0x1p3"}}, {"true|false", {"maybe"}}};
  for (const CommandRow& row : command_rows()) {
    for (const auto& [option, shown] : listed(run(row.name + " --help").out, "Options")) {
      const std::string type = shown.substr(0, shown.find('='));
      if (!option.starts_with("--") || (type != "TEXT" && !bad.contains(type))) continue;  // a flag
      SCOPED_TRACE(row.name + " " + option);
      std::vector<std::string> values;
      if (type != "TEXT") {
        values = bad.at(type);
      } else if (row.bad_text.contains(option)) {
        values = {row.bad_text.at(option)};
      } else {
        EXPECT_THAT(" " + row.arguments, AnyOf(HasSubstr(" " + option + " <"), HasSubstr(" " + option + " |"), HasSubstr("--model @")))
            << "its row says nothing of this option";
      }
      for (const std::string& value : values) {
        if (value == any_text) continue;
        std::vector<std::string> arguments = words(row);
        arguments.insert(arguments.end(), {option, value});
        const Ran ran = ended(start(arguments, "/dev/null"));
        if (value == no_path) {
          EXPECT_THAT(ran.code, AnyOf(1, 2)) << ran.err;
          EXPECT_THAT(ran.err, AnyOf(HasSubstr(no_path), HasSubstr(option)));
        } else {
          EXPECT_EQ(ran.code, 2) << value << "\n" << ran.err;
          EXPECT_THAT(ran.err, AnyOf(HasSubstr(option), HasSubstr(option.substr(2)), HasSubstr("specials"))) << value;
        }
      }
    }
  }
}

// A very long argument, for example a file's content instead of its path, must not fill the terminal.
TEST_F(EveryCommand, ShortensLongArguments) {
  const std::string huge(100'000, 'x');
  for (const CommandRow& row : command_rows()) {
    std::vector<std::vector<std::string>> commands;
    const std::vector<std::string> usual = words(row);
    const auto with = [&](const std::string& option, const std::string& value) {
      commands.push_back(usual);
      commands.back().insert(commands.back().end(), {option, value});
    };
    for (const auto& [option, shown] : listed(run(row.name + " --help").out, "Options"))
      if (option.starts_with("--") && !shown.empty() && row.bad_text.contains(option) && row.bad_text.at(option) != any_text)
        for (const std::string& value : {huge, lines("y\n", 50'000)}) with(option, value);
    commands.push_back(usual);
    commands.back().push_back(huge);
    with("--" + huge, "x");
    for (size_t at = words(row.name).size(); at < usual.size(); ++at) {  // replaces each argument in turn
      commands.push_back(usual);
      commands.back()[at] = huge;
    }
    std::vector<Running> running;  // at once
    for (const auto& arguments : commands) running.push_back(start(arguments, "/dev/null"));
    for (const Running& one : running) {
      SCOPED_TRACE(row.name);
      const Ran ran = ended(one);
      EXPECT_LT(ran.err.size(), 30'000U) << ran.err.substr(0, 1000);
      EXPECT_THAT(ran.code, AnyOf(0, 1, 2));
    }
  }
}

// Creates a bad input of this kind at `path`, which has the ending of a good one.
std::string bad_input(const std::string& kind, const std::string& path) {
  if (kind == "empty") write_file_atomic(path, "");
  if (kind == "folder") fs::create_directories(path);
  if (kind == "endless") fs::create_symlink("/dev/zero", path);
  if (kind == "a pipe") mkfifo(path.c_str(), 0600);
  if (kind == "huge") {
    std::ofstream(path).put('x');
    fs::resize_file(path, static_cast<uintmax_t>(kHuge));
  }
  return path;  // "missing" creates nothing
}

TEST_F(EveryCommand, RefusesInputsThatAreNoneAndNamesThem) {
  const std::vector<std::string> kinds{"missing", "folder", "empty", "endless", "huge", "a pipe"};
  const auto limited = [] {
    const rlimit memory{kMemory, kMemory};
    setrlimit(RLIMIT_DATA, &memory);
  };
  for (const CommandRow& row : command_rows()) {
    const std::vector<std::string> marked = words(row.name + " " + row.arguments);
    for (size_t at = 0; at < marked.size(); ++at) {
      const bool may_be_pipe = marked[at][0] == '|';
      if (!may_be_pipe && marked[at][0] != '<') continue;
      const std::string input = file(marked[at].substr(3));
      // The input itself and, if it is a folder, the files in it.
      std::vector<std::string> places{""};
      for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "00000.tokens"})
        if (fs::exists(input + "/" + name)) places.emplace_back(name);
      for (const std::string& place : places) {
        std::vector<std::pair<std::string, std::string>> inputs;
        std::vector<Running> running;  // concurrently, because some may wait
        for (const std::string& kind : kinds) {
          if (kind == "a pipe" && may_be_pipe) continue;
          // Without these files the command may succeed.
          if (kind == "missing" && (place == "tokenizer.json" || (place == "model.safetensors" && row.name == "inspect"))) continue;
          std::string path = file("bad-" + std::to_string(files_++) + fs::path(input).extension().string());
          std::vector<std::string> arguments = words(row);
          arguments[at] = path;
          if (!place.empty()) {
            fs::create_directories(path);
            for (const auto& entry : fs::directory_iterator(input))
              if (entry.path().filename() != place) fs::create_symlink(entry.path(), fs::path(path) / entry.path().filename());
            path += "/" + place;
          }
          inputs.emplace_back(kind, bad_input(kind, path));
          running.push_back(start(arguments, "/dev/null", limited));
        }
        for (size_t i = 0; i < running.size(); ++i) {
          const auto& [kind, path] = inputs[i];
          SCOPED_TRACE(row.name + " " + marked[at] + " " + place + ": " + kind);
          const Ran ran = ended(running[i]);
          // An empty input of lines or keys may be valid; otherwise the message may name the missing key instead of the file.
          if (kind == "empty" && (may_be_pipe || path.ends_with(".toml"))) {
            EXPECT_THAT(ran.code, AnyOf(0, 1, 2)) << ran.err;
            continue;
          }
          EXPECT_THAT(ran.code, AnyOf(1, 2)) << ran.err;
          EXPECT_THAT(ran.err, HasSubstr(kind == "missing" && !place.empty() ? fs::path(path).parent_path().string() : path));
        }
      }
    }
  }
}

// After a full disk has interrupted a command, the same command succeeds as soon as there is room.
TEST_F(EveryCommand, LeavesNothingThatBlocksItsRetryWhereTheDiskIsFull) {
  for (const CommandRow& row : command_rows()) {
    if ((" " + row.arguments + " ").find(" % ") == std::string::npos) continue;
    SCOPED_TRACE(row.name);
    int refused = 0;
    for (const rlim_t room : {200, 1000, 3000, 5000, 9000, 20'000, 60'000}) {
      const std::vector<std::string> arguments = words(row);
      const Ran full = ended(start(arguments, "/dev/null", [room] {
        const rlimit most{room, room};
        setrlimit(RLIMIT_FSIZE, &most);
      }));
      refused += full.code != 0;
      if (full.code == 0) break;
      EXPECT_EQ(full.code, 1) << room << "\n" << full.err;
      if (row.name == "train" && fs::exists(new_path_ + "/model.safetensors")) continue;  // the model is trained, and must not be replaced
      const Ran again = ended(start(arguments, "/dev/null"));
      EXPECT_EQ(again.code, 0) << room << "\n" << full.err << again.err;
    }
    EXPECT_GT(refused, 0) << "all of it is smaller than the limits";
  }
}

// As with `based train … 2>&1 | head -1`: the reader of both streams has closed the pipe.
TEST_F(EveryCommand, TrainingOutlivesTheReaderOfItsMessages) {
  const Started training(words("train @/run.toml --out %"), "/dev/null", "/dev/null", [] {
    int ends[2];
    if (pipe(ends) == 0) dup2(ends[1], 1), dup2(ends[1], 2), close(ends[0]), close(ends[1]);
  });
  const int status = training.status_within(kSeconds);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_TRUE(fs::exists(new_path_ + "/model.safetensors"));
}

TEST_F(EveryCommand, FilesAreNotWrittenByWhatWasMeantForAClosedDescriptor) {
  const Ran ran = ended(start_process(words("train @/run.toml --out %"), "/dev/null", [] { close(0), close(1), close(2); }));
  EXPECT_EQ(ran.code, 1);
  const std::string metrics = read_file(new_path_ + "/metrics.jsonl");
  std::istringstream text(metrics);
  for (std::string line; std::getline(text, line);) EXPECT_EQ(line.front(), '{') << metrics;
}

// As with nohup and background jobs of a script: the signals are ignored from the start.
TEST_F(EveryCommand, SignalsThatWereIgnoredBeforeStayIgnored) {
  const Running running = start_process(words("train @/run.toml --out % --set train.steps=10000000"), "/dev/null", [] {
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGHUP, SIG_IGN);
  });
  ASSERT_TRUE(running.program.catches(SIGTERM));
  for (const int signal : {SIGINT, SIGHUP}) running.program.signal(signal);
  usleep(300'000);
  EXPECT_FALSE(fs::exists(new_path_ + "/model.safetensors")) << "it stopped";
  running.program.signal(SIGTERM);
  EXPECT_EQ(ended(running).code, 1);
  EXPECT_TRUE(fs::exists(new_path_ + "/model.safetensors"));
}

}  // namespace every_command_test
}  // namespace based

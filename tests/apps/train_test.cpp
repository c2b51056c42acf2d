// `based train` under failures: signals, kills at random moments, a full disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "based/core/files.h"
#include "based/core/json.h"
#include "tests/apps/program.h"
#include "tests/core/temporary_folder.h"
#include "tests/train/results.h"

namespace based {
namespace train_test {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

// `based train` in a separate process.
class Training {
 public:
  Training(const std::string& config, const std::string& out, const std::vector<std::string>& more, rlim_t file_size = RLIM_INFINITY)
      : err_(out + ".err") {
    std::vector<std::string> words{BASED_PROGRAM, "train", config, "--out", out, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = fork();
    if (process_ != 0) return;
    const rlimit limit{file_size, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    setenv("OMP_NUM_THREADS", "1", 1);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), null = open("/dev/null", O_WRONLY);
    dup2(err, 2);
    dup2(null, 1);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~Training() {
    if (process_ > 0) signal(SIGKILL), wait();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void signal(int number) const { kill(process_, number); }
  pid_t process() const { return process_; }
  bool running() {
    if (process_ <= 0) return false;
    if (waitpid(process_, &status_, WNOHANG) == 0) return true;
    process_ = 0;
    return false;
  }
  int wait() {  // exit code; 128 + signal
    if (process_ > 0) waitpid(process_, &status_, 0);
    process_ = 0;
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }
  std::string err() const { return read_file(err_); }

 private:
  std::string err_;
  pid_t process_ = 0;
  int status_ = 0;
};

// Saves at every step, so that most of the time is spent in saves.
std::string write_config(const TemporaryFolder& folder, int64_t steps, const std::string& more = "") {
  std::ofstream text(folder.file("text.txt"));
  for (int i = 0; i < 300; ++i) text << "a line of text, number " << i * i % 97 << "\n";
  write_file_atomic(folder.file("run.toml"),
                    "[model]\nd_model = 8\nlayers = [\"taylor_attention\"]\nmlp_width = 8\nembedding_dropout = 0.1\n"
                    "[model.mixers.taylor_attention]\ntype = \"taylor_attention\"\nheads = 1\nfeature_dim = 2\n"
                    "[data]\ntrain = \"" +
                        folder.file("text.txt") +
                        "\"\ntokenizer = \"bytes\"\n"
                        "[checkpoint]\nevery = 1\n" +
                        more + "[train]\nbatch = 2\nlength = 16\nevaluate_every = 7\nevaluate_batches = 1\nlog_every = 1\nsteps = " +
                        std::to_string(steps) + "\n");
  return folder.file("run.toml");
}

int64_t newest_step(const std::string& out) {
  int64_t newest = 0;
  std::error_code none_yet;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints", none_yet)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && !name.ends_with(".tmp")) newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
  }
  return newest;
}

// Whether a save has begun after `start` and has not ended.
bool saving_since(const std::string& out, fs::file_time_type start) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints", gone)) {
    if (entry.path().extension() != ".tmp") continue;
    const fs::file_time_type changed = fs::last_write_time(entry.path(), gone);
    if (!gone && changed > start) return true;
  }
  return false;
}

bool wait_for_step(Training& training, const std::string& out, int64_t step) {
  while (training.running()) {
    if (newest_step(out) >= step) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(TrainProgram, KilledFiftyTimesItEndsAsIfItHadNeverStopped) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 300), whole = folder.file("whole"), out = folder.file("killed");
  const auto start = std::chrono::steady_clock::now();
  Training reference(config, whole, {});
  ASSERT_TRUE(wait_for_step(reference, whole, 1)) << reference.err();
  const auto first = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(reference.wait(), 0) << reference.err();

  std::mt19937 random(7);
  int kills = 0, inside_a_save = 0;
  // A save that no kill has interrupted leaves no folder; one that an earlier kill left is older than the process.
  while (kills < 50 || (inside_a_save < 5 && kills < 100)) {
    // Anywhere from the start of the program to a few steps after its first save; later, as long as a busier machine has come to none.
    const int64_t patience = newest_step(out) > 0 ? 0 : kills * first / 10;
    const milliseconds moment(std::uniform_int_distribution<int64_t>(first / 3, first * 5 / 4 + 30 + patience)(random));
    const milliseconds delay(std::uniform_int_distribution<int64_t>(0, 12)(random));
    const int64_t enough = newest_step(out) + 2;
    const auto begin = std::chrono::steady_clock::now();
    const fs::file_time_type started = fs::file_time_type::clock::now();
    Training training(config, out, {"--resume"});
    if (kills % 2 == 1) {  // as soon as a save has begun, so that a slow machine has such kills as well
      while (training.running() && !saving_since(out, started)) std::this_thread::yield();
    } else {
      while (std::chrono::steady_clock::now() - begin < moment && newest_step(out) < enough) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(delay);
    }
    ASSERT_TRUE(training.running()) << "it ended before it was killed: " << kills << " kills; " << training.err();
    training.signal(SIGKILL);
    ASSERT_EQ(training.wait(), 128 + SIGKILL);
    ++kills;
    inside_a_save += saving_since(out, started);
  }
  Training last(config, out, {"--resume"});
  ASSERT_EQ(last.wait(), 0) << last.err();
  EXPECT_THAT(last.err(), HasSubstr("resuming from step"));
  RecordProperty("inside_a_save", inside_a_save);
  EXPECT_GE(inside_a_save, 5) << "some of the kills must come inside a save";

  expect_equal_results(whole, out);
  for (const char* must : {"metrics.jsonl", "model.safetensors", "checkpoints/step-300/optimizer.safetensors"})
    EXPECT_TRUE(fs::exists(out + "/" + must)) << must;
}

// The process of a rank that `launcher` has started; 0 while there is none.
pid_t process_of_rank(pid_t launcher, int rank) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    std::ifstream status(entry.path() / "status"), environment(entry.path() / "environ");
    const std::string fields{std::istreambuf_iterator<char>(status), {}}, variables{std::istreambuf_iterator<char>(environment), {}};
    if (fields.find("\nPPid:\t" + std::to_string(launcher) + "\n") == std::string::npos) continue;
    const std::string wanted = "RANK=" + std::to_string(rank) + std::string(1, '\0');
    if (variables.starts_with(wanted) || variables.find('\0' + wanted) != std::string::npos)
      return std::stoi(entry.path().filename().string());
  }
  return 0;
}

bool exists(pid_t process) { return kill(process, 0) == 0; }

TEST(TrainProgram, TwoRanksTrainAsOneProcessDoes) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 8), one = folder.file("one"), two = folder.file("two");
  ASSERT_EQ(Training(config, one, {}).wait(), 0);
  const Ran ran = run("train " + config + " --json --devices cpu:2 --out " + two);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json result = parse_json(ran.out, "stdout");
  EXPECT_EQ(result["steps"], 8);
  EXPECT_EQ(result["checkpoint"], two + "/checkpoints/step-8");
  const auto last_hash = [](const std::string& out) {
    const std::string metrics = read_file(out + "/metrics.jsonl"), key = "\"order_hash\":\"";
    return metrics.substr(metrics.rfind(key) + key.size(), 16);
  };
  EXPECT_EQ(last_hash(one), last_hash(two));
  EXPECT_TRUE(fs::exists(two + "/logs/rank-1.log"));
  // One process continues where two stopped.
  fs::remove_all(two + "/checkpoints/step-8");
  Training resumed(config, two, {"--resume"});
  EXPECT_EQ(resumed.wait(), 0);
  EXPECT_THAT(resumed.err(), HasSubstr("the run was saved on 2 devices with train.accumulate = 1 and continues on 1 device with 1"));
  EXPECT_EQ(last_hash(one), last_hash(two));
}

TEST(TrainProgram, AKilledRankEndsTheJobAndIsNamed) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 1'000'000), out = folder.file("out");
  Training training(config, out, {"--devices", "cpu:2"});
  ASSERT_TRUE(wait_for_step(training, out, 2)) << training.err();
  const pid_t first = process_of_rank(training.process(), 0), second = process_of_rank(training.process(), 1);
  ASSERT_GT(first, 0);
  ASSERT_GT(second, 0);
  EXPECT_EQ(read_file("/proc/" + std::to_string(second) + "/comm"), "based\n") << "its name in ps";
  ASSERT_EQ(kill(second, SIGKILL), 0);
  EXPECT_EQ(training.wait(), 1);
  EXPECT_THAT(training.err(), testing::AllOf(HasSubstr("rank 1"), HasSubstr("Killed")));
  EXPECT_FALSE(exists(first)) << "no process remains";
  EXPECT_FALSE(exists(second));
  Training resumed(config, out, {"--devices", "cpu:2", "--resume"});
  const int64_t kept = newest_step(out);
  ASSERT_TRUE(wait_for_step(resumed, out, kept + 2)) << resumed.err();
  resumed.signal(SIGTERM);
  EXPECT_EQ(resumed.wait(), 1);
  EXPECT_THAT(resumed.err(), HasSubstr("stopped by a signal: step "));
}

TEST(TrainProgram, WrongDevicesAndRangesAreWrongUsage) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2), out = folder.file("out"), command = "train " + config + " --out " + out;
  const std::map<std::string, std::string> says{
      {" --devices cpu:2 --device cpu", "--device and --devices: give one of them"},
      {" --resume-from 3 --skip-windows 9", "--skip-windows must be A..B"},
      {" --resume-from 3 --skip-windows 9..9", "--skip-windows must be A..B"},
      {" --skip-windows 4..8", "--skip-windows needs --resume-from"},
      {" --resume-from 3", "has no checkpoint of step 3; it has none at all"},
      {" --devices cpu:3", "2 rows, 1 parts, 3 devices"},
  };
  for (const auto& [options, message] : says) {
    const Ran ran = run(command + options);
    EXPECT_EQ(ran.code, 2) << options;
    EXPECT_THAT(ran.err, HasSubstr(message)) << options;
  }
  const Ran piped = run("train /dev/stdin --devices cpu:2 --out " + out, "cat " + config + " | ");
  EXPECT_EQ(piped.code, 2);
  EXPECT_THAT(piped.err, HasSubstr("/dev/stdin: not a regular file"));
}

TEST(TrainProgram, ASignalFinishesTheStepSavesAndSaysWhatIsKept) {
  for (const int number : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    const std::string config = write_config(folder, 1'000'000), out = folder.file("out");
    Training training(config, out, {});
    ASSERT_TRUE(wait_for_step(training, out, 3)) << training.err();
    training.signal(number);
    EXPECT_EQ(training.wait(), 1);
    const int64_t step = std::stoll(fs::read_symlink(out + "/checkpoints/latest").string().substr(5));
    EXPECT_GE(step, 3);
    EXPECT_THAT(training.err(),
                HasSubstr("stopped by a signal: step " + std::to_string(step) + " is kept in " + out + "/checkpoints/step-"));
    EXPECT_TRUE(fs::exists(out + "/model.safetensors"));
  }
}

TEST(TrainProgram, ASecondSignalEndsItAtOnce) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 1000), out = folder.file("out");
  // A step takes far longer than the time between the two signals.
  Training training(config, out, {"--set", "train.batch=500", "--set", "train.length=128"});
  ASSERT_TRUE(wait_for_step(training, out, 1)) << training.err();
  while (training.running()) {
    training.signal(SIGTERM);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(training.wait(), 130);
  EXPECT_FALSE(fs::exists(out + "/model.safetensors")) << "it saved nothing more";
}

TEST(TrainProgram, AFolderWithCheckpointsIsNotOverwritten) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out");
  EXPECT_EQ(Training(config, out, {"--resume"}).wait(), 0);
  const auto before = results_of(out);
  Training second(config, out, {});
  EXPECT_EQ(second.wait(), 2);
  EXPECT_THAT(second.err(), HasSubstr("holds the checkpoints of a run; --resume continues it"));
  Training other(config, out, {"--resume", "--set", "train.seed=9"});
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.err(), HasSubstr("train.seed is 9, the run in " + out + " has 0"));
  EXPECT_EQ(results_of(out), before);
}

// The first process waits for its text on a pipe. Meanwhile the second must not even look for checkpoints.
TEST(TrainProgram, TheFolderIsLockedBeforeAnythingIsRead) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out"), pipe = folder.file("pipe.txt");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Training first(config, out, {"--set", "data.train=" + pipe, "--set", "data.valid=" + folder.file("text.txt")});
  std::ofstream text(pipe);  // blocks until the first process opens the pipe
  const auto others = [&](const std::string& options) { return run("train " + config + options + " --out " + out); };
  for (const char* options : {"", " --resume", " --overwrite"}) {
    const Ran second = others(options);
    EXPECT_EQ(second.code, 1) << options;
    EXPECT_THAT(second.err, HasSubstr(out + ": another run is writing to this folder (process " + std::to_string(first.process()) + ")"));
  }
  text << read_file(folder.file("text.txt"));
  text.close();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(others("").code, 2) << "its checkpoints are there";
}

TEST(TrainProgram, AModelWithoutCheckpointsIsKeptUnlessTold) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out"), command = "train " + config + " --out " + out;
  ASSERT_EQ(run(command).code, 0);
  fs::remove_all(out + "/checkpoints");
  const auto before = results_of(out);
  for (const char* options : {"", " --resume"}) {
    const Ran refused = run(command + options + " --set train.seed=5");
    EXPECT_EQ(refused.code, 2) << options;
    EXPECT_THAT(refused.err,
                HasSubstr("--out " + out + ": holds a model (config.json); --overwrite replaces that, another --out keeps it"));
    EXPECT_EQ(results_of(out), before) << options;
  }
  EXPECT_EQ(run(command + " --overwrite --set train.seed=5").code, 0);
  EXPECT_NE(results_of(out).at("model.safetensors"), before.at("model.safetensors"));
  EXPECT_EQ(run(command + " --overwrite").code, 2) << "checkpoints are not overwritten";
}

// Otherwise the end of the training would overwrite the tokenizer of another model, or of token shards.
TEST(TrainProgram, ATokenizerThatIsAnotherIsKeptUnlessTold) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out"), command = "train " + config + " --out " + out;
  ASSERT_EQ(run("tokenize train " + folder.file("text.txt") + " --vocab-size 300 --out " + out).code, 0);
  const std::string before = read_file(out + "/tokenizer.json");
  const Ran refused = run(command);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--out " + out + ": holds a tokenizer (merges.txt); --overwrite replaces that"));
  EXPECT_EQ(read_file(out + "/tokenizer.json"), before);
  EXPECT_EQ(run(command + " --set data.tokenizer=" + out).code, 0) << "its own is not replaced by another";
  EXPECT_EQ(read_file(out + "/tokenizer.json"), before);
  fs::remove_all(out + "/checkpoints");
  EXPECT_EQ(run(command + " --overwrite").code, 0);
  EXPECT_NE(read_file(out + "/tokenizer.json"), before);
}

TEST(TrainProgram, AVocabularyThatIsNotTheTokenizersIsRefused) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out"), command = "train " + config + " --out " + out;
  for (const char* size : {"100", "258"}) {
    const Ran refused = run(command + " --set 'model.vocab_size=" + size + "'");
    EXPECT_EQ(refused.code, 2) << size;
    EXPECT_THAT(refused.err,
                HasSubstr("model.vocab_size is " + std::string(size) +
                          ", but the tokenizer (data.tokenizer = bytes) has 257 tokens: leave the key out, or give that number"));
    EXPECT_FALSE(fs::exists(out)) << "nothing was started";
  }
  const Ran preset = run(command + " --out " + folder.file("preset") + " --set train.steps=1 --set data.train=" + folder.file("text.txt") +
                         " --set 'model={preset = \"based-demo\", layers = [\"gated_conv\"], d_model = 8, mlp_width = 8}'");
  EXPECT_THAT(preset.err,
              HasSubstr("the vocabulary of the preset has 1024 tokens, and the tokenizer (data.tokenizer = bytes) has 257 tokens"));
  const Ran learnt = run(command + " --out " + folder.file("learnt") + " --set data.tokenizer=bpe --set data.bpe_vocab_size=9000");
  EXPECT_EQ(learnt.code, 0) << learnt.err;
  EXPECT_THAT(learnt.err, testing::ContainsRegex("data.bpe_vocab_size is 9000, and the text gives [0-9]+ tokens"));
  EXPECT_EQ(run(command + " --set model.vocab_size=257").code, 0);
  EXPECT_EQ(parse_json(read_file(out + "/config.json"), "config")["vocab_size"], 257);
}

TEST(TrainProgram, GoesOnWithTheTokenizerThatItBeganWith) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 3), out = folder.file("out"), bpe = folder.file("bpe"),
                    command = "train " + config + " --out " + out;
  ASSERT_EQ(run("tokenize train " + folder.file("text.txt") + " --vocab-size 300 --out " + bpe).code, 0);
  ASSERT_EQ(run(command).code, 0);
  const Ran other = run(command + " --resume --set data.tokenizer=" + bpe);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--resume: data.tokenizer = " + bpe + " is not the tokenizer that the run began with"));
  EXPECT_EQ(run(command + " --resume --set data.tokenizer=" + folder.file("moved")).code, 0) << "the checkpoint has its own";
}

// There is room for the model, but not for a checkpoint, which also has the moments.
TEST(TrainProgram, AFullDiskAtTheLastCheckpointLeavesTheModel) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 4), out = folder.file("out"), whole = folder.file("whole");
  ASSERT_EQ(Training(config, whole, {}).wait(), 0);
  const uintmax_t limit = fs::file_size(whole + "/model.safetensors") + 512;
  ASSERT_LT(limit, fs::file_size(whole + "/checkpoints/latest/optimizer.safetensors"));
  Training full(config, out, {}, limit);
  EXPECT_EQ(full.wait(), 1);
  EXPECT_THAT(full.err(), HasSubstr("the checkpoint of the last step, 4, could not be saved"));
  EXPECT_THAT(full.err(), HasSubstr("the model of that step is in " + out + ", no checkpoint was saved before"));
  EXPECT_TRUE(read_file(out + "/model.safetensors") == read_file(whole + "/model.safetensors"));
  EXPECT_TRUE(fs::exists(out + "/config.json"));
}

// The loss overflows at once at this rate. The run has fewer steps than max_bad_steps.
TEST(TrainProgram, ADivergedRunFailsAndKeepsTheLastGoodCheckpoint) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 6), out = folder.file("out");
  const Ran ran =
      run("train " + config + " --json --out " + out +
          " --set optimizer.learning_rate=1e6 --set optimizer.weight_decay=0 --set optimizer.warmup=0 --set train.evaluate_every=0");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("training: step 6: the last evaluation's loss is not finite"));
  const std::string kept = out + "/checkpoints/step-5";
  EXPECT_THAT(ran.err, HasSubstr("the last checkpoint, " + kept + ", is kept"));
  const Json json = parse_json(ran.out, "stdout");
  EXPECT_THAT(json["failure"].get<std::string>(), HasSubstr("loss is not finite"));
  EXPECT_EQ(json["checkpoint"], kept);
  EXPECT_TRUE(fs::exists(kept + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(out + "/model.safetensors"));
  const Ran good = run("train " + config + " --json --out " + folder.file("good"));
  EXPECT_TRUE(parse_json(good.out, "stdout")["failure"].is_null());
  EXPECT_EQ(run("perplexity --model " + kept + " --data " + folder.file("text.txt")).code, 1);
  EXPECT_THAT(run("perplexity --model " + kept + " --data " + folder.file("text.txt")).err,
              HasSubstr("based: " + kept + ": a token's probability is not a number"));
}

TEST(TrainProgram, ValuesOutsideTheirRangeAreWrongUsage) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2), out = folder.file("out");
  const std::map<std::string, std::string> says{{"optimizer.learning_rate=1e300", "learning_rate must be above 0 and at most 1e6"},
                                                {"optimizer.weight_decay=inf", "weight_decay must be 0 to 1/learning_rate"},
                                                {"optimizer.clip=nan", "clip must be a number"},
                                                {"data.valid_fraction=nan", "data.valid_fraction must be above 0 and below 1"},
                                                {"model.embedding_dropout=nan", "model.embedding_dropout must be 0 to 1"},
                                                {"model.norm_eps=inf", "model.norm_eps must be 0 to 1"},
                                                {"model.max_positions=8", "train.length = 16 is more than model.max_positions = 8"},
                                                {"model=5", "--set model=5: 'model' must be a table, not the integer 5"},
                                                {"train.batch=4611686018427387904", "train.batch times train.length must be below 2^31"}};
  for (const auto& [setting, message] : says) {
    const Ran ran = run("train " + config + " --out " + out + " --set " + setting);
    EXPECT_EQ(ran.code, 2) << setting;
    EXPECT_THAT(ran.err, HasSubstr(message)) << setting;
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST(TrainProgram, MeasuringMoreTokensThanTheModelHasPositionsIsRefused) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2), out = folder.file("out"), text = folder.file("text.txt");
  ASSERT_EQ(run("train " + config + " --set model.max_positions=16 --out " + out).code, 0);
  for (const char* context : {"0", "17"}) {
    const Ran ran = run("perplexity --model " + out + " --data " + text + " --context " + context);
    EXPECT_EQ(ran.code, 1) << context;
    EXPECT_THAT(ran.err, HasSubstr("positions are needed, and the model has learnt 16 (max_positions)")) << context;
  }
  EXPECT_EQ(run("perplexity --model " + out + " --data " + text + " --context 16").code, 0);
}

// Past RLIMIT_FSIZE no checkpoint can be written.
TEST(TrainProgram, AFullDiskKeepsTheOldCheckpointAndTheRunGoesOn) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 12), out = folder.file("out");
  {
    Training training(write_config(folder, 12), out, {});
    ASSERT_TRUE(wait_for_step(training, out, 2));
    training.signal(SIGKILL);
    training.wait();
  }
  Training full(config, out, {"--resume"}, 4096);
  EXPECT_EQ(full.wait(), 1);
  EXPECT_THAT(full.err(), HasSubstr("earlier checkpoints are kept and training continues"));
  EXPECT_THAT(full.err(), HasSubstr("File too large"));
  Training last(config, out, {"--resume"});
  EXPECT_EQ(last.wait(), 0) << last.err();
  EXPECT_THAT(last.err(), HasSubstr("resuming from step"));
}

TEST(TrainProgram, ADeviceThatIsNotThereIsAUsersError) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 1), out = folder.file("out");
  for (const char* device : {"tpu", "cuda:99"}) {
    Training training(config, out, {"--device", device});
    EXPECT_EQ(training.wait(), 2);
    EXPECT_THAT(training.err(), HasSubstr("train.device"));
    EXPECT_THAT(training.err(), HasSubstr(device));
  }
  EXPECT_FALSE(fs::exists(out)) << "nothing was written";
}

// The two configs of experiments/gpu-training, with a model and a text small enough for a CPU.
TEST(TrainProgram, TheRunsAtThePapersSizeDifferInTheModelAlone) {
  const TemporaryFolder folder;
  const std::string small = write_config(folder, 1), text = folder.file("text.txt");
  std::vector<std::string> configs;
  for (const std::string model : {"based", "attn"}) {
    const std::string config = BASED_SOURCE_DIR "/experiments/gpu-training/" + model + "-360m.toml", out = folder.file(model);
    configs.push_back(read_file(config));
    configs.back().erase(0, configs.back().find('\n'));
    Training training(config, out,
                      {"--device", "cpu", "--set", "model.preset=" + model + "-tiny", "--set", "data.train=" + text, "--set",
                       "data.valid=" + text, "--set", "data.tokenizer=bytes", "--set", "train.steps=2", "--set", "train.batch=2", "--set",
                       "train.length=32", "--set", "train.evaluate_batches=1"});
    EXPECT_EQ(training.wait(), 0) << training.err();
    EXPECT_THAT(read_file(out + "/timing.jsonl"), HasSubstr("\"peak_memory_bytes\":"));
    EXPECT_THAT(read_file(out + "/run.json"), HasSubstr("\"device\": \"cpu\""));
  }
  const size_t preset = configs[1].find("attn-360m");
  ASSERT_NE(preset, std::string::npos);
  EXPECT_EQ(configs[0], configs[1].replace(preset, 9, "based-360m"));
}

TEST(TrainProgram, ALearningRateThatDivergesEndsWithItsWindows) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 100), out = folder.file("out");
  Training training(config, out,
                    {"--set", "optimizer.learning_rate=1e6", "--set", "optimizer.weight_decay=0", "--set", "train.max_bad_steps=4"});
  EXPECT_EQ(training.wait(), 1);
  EXPECT_THAT(training.err(), HasSubstr("4 steps in a row could not be used"));
  EXPECT_THAT(training.err(), HasSubstr("; windows ["));
}

}  // namespace train_test
}  // namespace based

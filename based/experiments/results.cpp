#include "based/experiments/results.h"

#include <filesystem>
#include <map>
#include <unordered_map>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/log.h"
#include "based/core/text.h"

namespace based {
namespace {

namespace fs = std::filesystem;

constexpr int64_t format = 1;
constexpr double most_seconds = 1e9;  // thirty years
constexpr const char *ending = ".json", *claim_ending = ".claim";

class LaterFormat : public Error {
 public:
  using Error::Error;
};

void require_same(const Config& stored, const std::string& name, const std::string& wanted) {
  const std::string found = stored.find(name)->to_json(-1);
  if (found != wanted) throw Error(stored.where() + name + " is " + in_quotes(found) + ", but the run has " + in_quotes(wanted));
}

// Throws Error if the result is not that of runs()[index].
void check_stored(const ExperimentFile& file, size_t index, torch::DeviceType device, const Config& stored, const StoredRun& run) {
  const PlannedRun& planned = file.runs()[index];
  const std::string key = run_key(*file.kind, planned, device);
  if (run.key != key) throw Error(stored.where() + "it holds the run " + in_quotes(run.key));
  require_same(stored, "kind", Config(std::string(file.kind->name)).to_json(-1));
  require_same(stored, "device", Config(device_name(device)).to_json(-1));
  require_same(stored, "seed", std::to_string(planned.seed));
  require_same(stored, "config", config_of(planned).to_json(-1));
  require_same(stored, "versions", planned.rate->versions.to_json(-1));
  if (run.learning_rate != planned.rate->learning_rate) throw Error(stored.where() + "learning_rate is another than the run's");
  require_figure(stored.where(), "seconds", run.seconds, 0, most_seconds);
  const bool has_figures = run.outcome.is_table() && !std::get<Config::Table>(run.outcome.value()).empty();
  if (run.failed.empty()) {
    if (!has_figures) throw Error(stored.where() + "it has no outcome");
    file.experiment->check(index, run.outcome);
  } else if (has_figures) {
    throw Error(stored.where() + "it has both an outcome and a reason why there is none");
  }
}

// Parses a result and checks its format and fields. Throws LaterFormat, or Error naming the field.
StoredRun parse_run(const Config& stored) {
  const Config* written = stored.find("format");
  const auto* number = written != nullptr ? std::get_if<int64_t>(&written->value()) : nullptr;
  if (number == nullptr || *number < format) throw Error(stored.where() + "its format is not " + std::to_string(format));
  if (*number > format) throw LaterFormat(stored.where() + "was written by a later version of this program, which is needed to go on");
  return read_whole<StoredRun>(stored);
}

StoredRun checked_run(const ExperimentFile& file, size_t index, torch::DeviceType device, const Config& stored) {
  StoredRun run = parse_run(stored);
  check_stored(file, index, device, stored, run);
  return run;
}

struct PlannedKey {
  size_t index = 0;
  torch::DeviceType device = torch::kCPU;
};

std::unordered_map<std::string, PlannedKey> planned_keys(const ExperimentFile& file) {
  std::unordered_map<std::string, PlannedKey> keys;
  for (size_t i = 0; i < file.runs().size(); ++i)
    for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) keys[run_key(*file.kind, file.runs()[i], device)] = {i, device};
  return keys;
}

Hash128 hash_of(const std::string& text) { return xxh3_128(std::as_bytes(std::span(text))); }

}  // namespace

std::string ResultsFolder::file(const std::string& key) const { return (fs::path(folder_) / (key + ending)).string(); }
std::string ResultsFolder::claim(const std::string& key) const { return (fs::path(folder_) / (key + claim_ending)).string(); }

void ResultsFolder::make() {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  constexpr const char* remedy = "; --out names another folder for results";
  if (failed) throw Error(folder_ + ": cannot make the folder: " + failed.message() + remedy);
  try {
    check_writable(file("a run"));
  } catch (const Error& error) {
    throw Error(error.what() + std::string(remedy));
  }
}

std::string ResultsFolder::place() const {
  if (!path_exists(packed_.path())) return folder_;
  return path_exists(folder_) ? folder_ + " and " + packed_.path() : packed_.path();
}

std::unordered_set<std::string> ResultsFolder::file_keys() const {
  std::unordered_set<std::string> found;
  if (!path_exists(folder_)) return found;
  std::error_code failed;
  fs::directory_iterator entries(folder_, failed);
  for (; !failed && entries != fs::directory_iterator{}; entries.increment(failed))
    if (entries->path().extension() == ending) found.insert(entries->path().stem().string());
  if (failed) throw Error(folder_ + ": the results there cannot be listed: " + failed.message());
  return found;
}

std::unordered_set<std::string> ResultsFolder::keys() const {
  std::unordered_set<std::string> found = file_keys();  // first: a file that is packed meanwhile is a line then
  packed_.refresh();
  for (const auto& [key, line] : packed_.lines()) found.insert(key);
  return found;
}

bool ResultsFolder::has_line(const std::string& key) const {
  packed_.refresh();
  return packed_.find(key) != nullptr;
}

std::optional<StoredRun> ResultsFolder::read(const ExperimentFile& experiment, size_t index, torch::DeviceType device,
                                             bool set_aside) const {
  const std::string key = run_key(*experiment.kind, experiment.runs()[index], device), path = file(key);
  std::string damage;
  if (path_exists(path)) {
    const std::string text = read_regular_file(path);
    try {
      return checked_run(experiment, index, device, Config::parse_json(text, path));
    } catch (const LaterFormat&) {
      throw;
    } catch (const Error& error) {
      damage = error.what();
    }
    std::error_code failed;
    if (set_aside) fs::rename(path, path + ".damaged", failed);
    const bool gone = failed == std::errc::no_such_file_or_directory;  // another process was quicker
    if (failed && !gone)
      throw Error(damage + ": the file is damaged, and cannot be renamed to " + path + ".damaged: " + failed.message() +
                  "; make its folder writable, or remove the file");
  }
  packed_.refresh();
  const PackedResults::Line* line = packed_.find(key);
  if (!damage.empty()) {
    const std::string now = set_aside ? "; it is now " + path + ".damaged, and " : "; ";
    const std::string then = line != nullptr ? packed_.where(*line) + " is used"
                             : set_aside     ? "the run is done again"
                                             : "its run is counted as missing";
    log_warning(damage + ": the file is damaged" + now + then);
  }
  if (line == nullptr) return {};
  try {
    return checked_run(experiment, index, device, Config::parse_json(line->text, packed_.where(*line)));
  } catch (const LaterFormat&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.what() + std::string(": the line is damaged; restore it, or remove it, and its run is missing"));
  }
}

void ResultsFolder::write(const StoredRun& run) const { write_file_atomic(file(run.key), write_config(run).to_json() + "\n"); }

// A run's claim is held while its file is written, so no file is replaced between the comparison and the removal.
bool ResultsFolder::remove_packed(const std::string& key, const Hash128& packed) const {
  LockFile lock(claim(key));
  LockFile::Taken taken = lock.try_take();
  while (taken == LockFile::Taken::gone && path_exists(folder_)) taken = lock.try_take();
  if (taken != LockFile::Taken::yes || !path_exists(file(key)) || hash_of(read_regular_file(file(key))) != packed) return false;
  remove_file(file(key));
  return true;
}

PackOutcome ResultsFolder::pack(const ExperimentFile& experiment) {
  PackOutcome outcome;
  if (file_keys().empty()) {
    packed_.refresh();
    outcome.lines = static_cast<int64_t>(packed_.lines().size());
    return outcome;
  }
  const FileLock lock(packed_.path());
  for (const std::string& name : names_in(folder_))
    if (name.ends_with(claim_ending) && LockFile((fs::path(folder_) / name).string()).try_take() == LockFile::Taken::held)
      throw Error(folder_ + ": a run is under way there (" + name + " is locked); pack its results when it has ended");
  packed_.refresh();
  std::map<std::string, std::string> lines;
  for (const auto& [key, line] : packed_.lines()) lines.emplace(key, line.text);
  const std::unordered_map<std::string, PlannedKey> planned = planned_keys(experiment);
  std::map<std::string, Hash128> packed;
  for (const std::string& key : file_keys()) {
    const std::string path = file(key), text = read_regular_file(path);
    try {
      const Config stored = Config::parse_json(text, path);
      const auto found = planned.find(key);
      const StoredRun run =
          found == planned.end() ? parse_run(stored) : checked_run(experiment, found->second.index, found->second.device, stored);
      if (run.key != key) throw Error(stored.where() + "key is " + in_quotes(run.key) + ", not the file's name");
      lines[key] = stored.to_json(-1);
    } catch (const LaterFormat&) {
      throw;
    } catch (const Error& error) {
      throw Error(error.what() + std::string(": the file is damaged; `based experiment run` does its run again. Nothing is packed"));
    }
    packed.emplace(key, hash_of(text));
  }
  packed_.write(lines);
  for (const auto& [key, hash] : packed) ++(remove_packed(key, hash) ? outcome.packed : outcome.left);
  sync_folder(folder_);
  outcome.lines = static_cast<int64_t>(lines.size());
  return outcome;
}

}  // namespace based

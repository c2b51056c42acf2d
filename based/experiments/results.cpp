#include "based/experiments/results.h"

#include <filesystem>

#include "based/core/files.h"
#include "based/core/log.h"
#include "based/core/text.h"

namespace based {
namespace {

namespace fs = std::filesystem;

constexpr int64_t format = 1;
constexpr double most_seconds = 1e9;  // thirty years
constexpr const char* ending = ".json";

void require_same(const Config& stored, const std::string& name, const std::string& wanted) {
  const std::string found = stored.find(name)->to_json(-1);
  if (found != wanted) throw Error(stored.where() + name + " is " + in_quotes(found) + ", but the run has " + in_quotes(wanted));
}

// Throws Error where the file is not that of runs()[index].
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

// Throws Error where the text is none of the format; false: it is of a later one.
bool is_current(const Config& stored) {
  const Config* written = stored.find("format");
  const auto* number = written != nullptr ? std::get_if<int64_t>(&written->value()) : nullptr;
  if (number == nullptr || *number < format) throw Error(stored.where() + "its format is not " + std::to_string(format));
  return *number == format;
}

}  // namespace

std::string ResultsFolder::file(const std::string& key) const { return (fs::path(folder_) / (key + ending)).string(); }
std::string ResultsFolder::claim(const std::string& key) const { return (fs::path(folder_) / (key + ".claim")).string(); }

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

std::unordered_set<std::string> ResultsFolder::keys() const {
  std::unordered_set<std::string> found;
  if (!path_exists(folder_)) return found;
  std::error_code failed;
  fs::directory_iterator entries(folder_, failed);
  for (; !failed && entries != fs::directory_iterator{}; entries.increment(failed))
    if (entries->path().extension() == ending) found.insert(entries->path().stem().string());
  if (failed) throw Error(folder_ + ": the results there cannot be listed: " + failed.message());
  return found;
}

std::optional<StoredRun> ResultsFolder::read(const ExperimentFile& of, size_t index, torch::DeviceType device, bool set_aside) const {
  const std::string path = file(run_key(*of.kind, of.runs()[index], device));
  if (!path_exists(path)) return {};
  const std::string text = read_regular_file(path);
  bool later = false;
  std::string damage;
  try {
    const Config stored = Config::parse_json(text, path);
    later = !is_current(stored);
    if (!later) {
      StoredRun run = read_whole<StoredRun>(stored);
      check_stored(of, index, device, stored, run);
      return run;
    }
  } catch (const Error& error) {
    damage = error.what();
  }
  if (later) throw Error(path + ": was written by a later version of this program, which is needed to go on");
  std::error_code failed;
  if (set_aside) fs::rename(path, path + ".damaged", failed);
  const bool gone = failed == std::errc::no_such_file_or_directory;  // another process was quicker
  if (failed && !gone)
    throw Error(damage + ": the file is damaged, and cannot be renamed to " + path + ".damaged: " + failed.message() +
                "; make its folder writable, or remove the file");
  log_warning(damage + ": the file is damaged" +
              (set_aside ? "; it is now " + path + ".damaged, and the run is done again" : "; its run is counted as missing"));
  return {};
}

void ResultsFolder::write(const StoredRun& run) const { write_file_atomic(file(run.key), write_config(run).to_json() + "\n"); }

}  // namespace based

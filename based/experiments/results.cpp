#include "based/experiments/results.h"

#include <filesystem>

#include "based/core/files.h"
#include "based/core/log.h"

namespace based {
namespace {

namespace fs = std::filesystem;

constexpr int64_t format = 1;

StoredRun parse(const std::string& text, const std::string& path, const std::string& key) {
  const Config config = Config::parse_json(text, path);
  const Config* written = config.find("format");
  const auto* number = written != nullptr ? std::get_if<int64_t>(&written->value()) : nullptr;
  StoredRun run;
  if (number != nullptr && *number > format) {
    run.format = *number;
    return run;
  }
  run = read_stored([&] { return read_config<StoredRun>(config); });
  if (run.key != key) throw Error(path + ": it holds the run " + run.key);
  if (run.failed.empty() && !run.outcome.is_table()) throw Error(path + ": it has no outcome");
  return run;
}

}  // namespace

std::string ResultsFolder::file(const std::string& key) const { return (fs::path(folder_) / (key + ".json")).string(); }
std::string ResultsFolder::claim(const std::string& key) const { return (fs::path(folder_) / (key + ".claim")).string(); }

void ResultsFolder::make() {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) throw Error(folder_ + ": cannot make the folder: " + failed.message());
  check_writable(file("a run"));
}

std::optional<StoredRun> ResultsFolder::read(const std::string& key, bool set_aside) const {
  const std::string path = file(key);
  if (!path_exists(path)) return {};
  const std::string text = read_regular_file(path);
  StoredRun run;
  try {
    run = parse(text, path, key);
  } catch (const Error& error) {
    std::error_code gone;  // another process was quicker
    if (set_aside) fs::rename(path, path + ".damaged", gone);
    log_warning(std::string(error.what()) + ": the file is damaged" +
                (set_aside ? "; it is now " + path + ".damaged, and the run is done again" : "; its run is counted as missing"));
    return {};
  }
  if (run.format > format) throw Error(path + ": was written by a later version of this program, which is needed to go on");
  return run;
}

void ResultsFolder::write(const StoredRun& run) const { write_file_atomic(file(run.key), write_config(run).to_json() + "\n"); }

}  // namespace based

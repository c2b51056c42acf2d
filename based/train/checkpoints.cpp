#include "based/train/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/log.h"
#include "based/core/manifest.h"

namespace based {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kTemporary = ".tmp", kReplaced = ".replaced.tmp";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || last != end || step < 0 || name != std::string(kPrefix) + std::to_string(step)) return std::nullopt;
  return step;
}

// Empty if the folder does not exist yet.
std::vector<std::string> known_names(const std::string& folder) {
  return is_folder(folder) ? names_in(folder) : std::vector<std::string>();
}

}  // namespace

Checkpoints::Checkpoints(std::string folder, int64_t keep) : folder_(std::move(folder)), keep_(keep) { BASED_ASSERT(keep >= 1); }

std::string Checkpoints::path(int64_t step) const { return (fs::path(folder_) / (std::string(kPrefix) + std::to_string(step))).string(); }

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : known_names(folder_))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

void Checkpoints::restore_replaced() {
  for (const std::string& name : known_names(folder_)) {
    if (!name.ends_with(kReplaced)) continue;
    const std::string original = path_in(folder_, name.substr(0, name.size() - kReplaced.size()));
    if (!path_exists(original)) rename_path(path_in(folder_, name), original);
  }
}

void Checkpoints::sweep() {
  for (const std::string& name : known_names(folder_))
    if (name.ends_with(kTemporary)) remove_tree((fs::path(folder_) / name).string());
}

void Checkpoints::save(int64_t step, int64_t best, const std::function<void(const std::string& folder)>& write) {
  const std::string final_path = path(step), staged = final_path + std::string(kTemporary), replaced = final_path + std::string(kReplaced);
  try {
    remove_tree(staged);
    make_folder(staged);
    write(staged);
    write_manifest(staged);
    sync_folder(staged);
    remove_tree(replaced);
    if (path_exists(final_path)) rename_path(final_path, replaced);
    rename_path(staged, final_path);
    sync_folder(folder_);
    remove_tree(replaced);
  } catch (const Error&) {
    std::error_code ignored;
    if (!fs::exists(final_path, ignored)) fs::rename(replaced, final_path, ignored);
    fs::remove_all(staged, ignored);
    throw;
  }
  link("latest", step);
  // If the save of the best evaluation failed, its folder does not exist: keep the previous best.
  const int64_t kept = best >= 0 && !path_exists(path(best)) ? linked_best() : best;
  if (kept >= 0) link("best", kept);
  prune(step, kept);
}

int64_t Checkpoints::linked_best() const {
  std::error_code none;
  const std::string name = fs::read_symlink(fs::path(folder_) / "best", none).string();
  const int64_t step = step_of(name).value_or(-1);
  return step >= 0 && path_exists(path(step)) ? step : -1;
}

// The links are a convenience for readers. A file system without links gives a warning, not an error.
void Checkpoints::link(const char* name, int64_t step) const {
  const fs::path at = fs::path(folder_) / name, next = fs::path(folder_) / (std::string(name) + std::string(kTemporary));
  std::error_code error;
  fs::remove(next, error);
  fs::create_directory_symlink(fs::path(path(step)).filename(), next, error);
  if (!error) fs::rename(next, at, error);
  if (error) log_warning(at.string() + ": the link cannot be made: " + error.message());
}

void Checkpoints::prune(int64_t newest, int64_t best) const {
  std::vector<int64_t> known = steps();
  std::reverse(known.begin(), known.end());
  int64_t kept = 0;
  for (const int64_t step : known) {
    if (step > newest || step == best || kept++ < keep_) continue;
    remove(step);
  }
}

// Renames the folder before removing it, so that an interrupted removal leaves no incomplete checkpoint.
void Checkpoints::remove(int64_t step) const {
  const std::string doomed = path(step) + ".old" + std::string(kTemporary);
  remove_tree(doomed);
  rename_path(path(step), doomed);
  remove_tree(doomed);
}

void Checkpoints::require_whole(int64_t step) const {
  const std::vector<int64_t> known = steps();
  if (std::find(known.begin(), known.end(), step) == known.end()) {
    std::string list;
    for (const int64_t one : known) list += (list.empty() ? "" : ", ") + std::to_string(one);
    throw UsageError(folder_ + ": has no checkpoint of step " + std::to_string(step) +
                     (list.empty() ? "; it has none at all" : "; there are those of steps " + list));
  }
  verify_manifest(path(step));
}

std::vector<std::string> Checkpoints::set_aside_after(int64_t step, int64_t best) {
  std::vector<std::string> moved;
  for (const int64_t later : steps()) {
    if (later <= step) continue;
    const std::string first = path_in(folder_, "aside-step-" + std::to_string(later));
    std::string aside = first;
    for (int64_t number = 2; path_exists(aside); ++number) aside = first + "-" + std::to_string(number);
    rename_path(path(later), aside);
    moved.push_back(aside);
  }
  link("latest", step);
  std::error_code ignored;
  if (best >= 0 && path_exists(path(best)))
    link("best", best);
  else
    fs::remove(fs::path(folder_) / "best", ignored);
  sync_folder(folder_);
  return moved;
}

std::optional<int64_t> Checkpoints::newest_whole() {
  std::vector<int64_t> known = steps(), damaged;
  for (auto step = known.rbegin(); step != known.rend(); ++step) {
    try {
      verify_manifest(path(*step));
    } catch (const Error& error) {
      log_warning("checkpoint of step " + std::to_string(*step) + " is not whole: " + error.what());
      damaged.push_back(*step);
      continue;
    }
    for (const int64_t bad : damaged) {
      const std::string aside = (fs::path(folder_) / ("damaged-step-" + std::to_string(bad))).string();
      remove_tree(aside);
      rename_path(path(bad), aside);
      log_warning("going back to step " + std::to_string(*step) + "; the damaged one is kept as " + aside);
    }
    return *step;
  }
  if (!damaged.empty()) {
    throw Error(folder_ + ": all " + std::to_string(damaged.size()) +
                " checkpoints are damaged; restore one from a copy, or start anew in another folder");
  }
  return std::nullopt;
}

}  // namespace based

#include "based/core/new_folder.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"

namespace based {
namespace {

namespace fs = std::filesystem;

// The normalised path without a trailing slash.
std::string plain(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

std::string folder_above(const std::string& path) {
  const std::string above = fs::path(plain(path)).parent_path().string();
  return above.empty() ? "." : above;
}

std::string free_path(const std::string& path, const std::string& option) {
  if (path_exists(plain(path))) throw UsageError(option + " " + path + ": is there already; name a new folder");
  return plain(path);
}

}  // namespace

MadeFolder::MadeFolder(const std::string& path, const std::string& asked_for) {
  std::error_code error;
  std::vector<std::string> absent;  // the innermost first
  for (fs::path at = plain(path); !at.empty() && !fs::exists(at, error) && !error; at = at.parent_path()) absent.push_back(at.string());
  for (auto folder = absent.rbegin(); folder != absent.rend(); ++folder)
    if (fs::create_directory(*folder, error)) made_.push_back(*folder);
  if (fs::is_directory(path, error)) return;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, error);
  fs::create_directories(path, error);  // repeats the failure to get its reason
  throw Error(asked_for + ": cannot make the folder: " + (error ? error.message() : "something else is in its place"));
}

MadeFolder::~MadeFolder() {
  std::error_code ignored;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, ignored);
}

NewFolder::NewFolder(const std::string& path, const std::string& option)
    : path_(free_path(path, option)), above_(folder_above(path)), parent_(above_, path) {
  staging_ = temporary_sibling(path_);
  std::error_code error;
  if (!fs::create_directory(staging_, error)) throw Error(path + ": cannot make the folder: " + error.message());
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void NewFolder::fill(const std::function<void(const std::string& folder)>& write) {
  try {
    write(staging_);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    std::string what = error.what();
    for (size_t at = 0; (at = what.find(staging_, at)) != std::string::npos; at += path_.size()) what.replace(at, staging_.size(), path_);
    throw Error(what);
  }
  sync_folder(staging_);
  if (std::rename(staging_.c_str(), path_.c_str()) != 0)
    throw Error(path_ + ": cannot put the new folder in place: " + system_message(errno));
  staging_.clear();
  parent_.keep();
  sync_folder(above_);
}

}  // namespace based

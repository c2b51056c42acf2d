// A reader of another program's config.json. Every key is either read, known to have no effect here, or named in a warning; values that
// this library cannot express are errors that name the key and the reason.
#pragma once
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "based/core/json.h"

namespace based::published {

class ConfigReader {
 public:
  // `json` must outlive the reader. `path` is the file's. Throws Error if it is no object.
  ConfigReader(const Json& json, std::string path);

  const std::string& path() const { return path_; }
  bool has(const std::string& key) const;                                   // present and not null
  std::string name(const std::string& key) const { return prefix_ + key; }  // with those of the tables around it: "alt_mixer.eps"

  // The value of a key, or `fallback` if it is absent or null. Throw Error that names the key for a value of another type.
  int64_t integer(const std::string& key, int64_t fallback);
  double number(const std::string& key, double fallback);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  bool is_text(const std::string& key, const std::string& expected);  // whether the value is this string; false for other types
  std::vector<int64_t> integers(const std::string& key);              // empty if absent
  ConfigReader* table(const std::string& key);                        // null if absent; belongs to this reader
  int64_t size(const std::string& key);                               // required, at least 1
  int64_t size(const std::string& key, int64_t fallback);             // at least 1

  int64_t layers(const std::string& key);  // required, 1 to 1024

  // Throws Error "<path>: '<key>' is <value>: <reason>".
  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;
  // Refuses a value other than `expected`; an absent or null key has this value.
  void require(const std::string& key, const Json& expected, const std::string& reason);
  // Keys that do not change the outputs of a trained model.
  void ignore(std::initializer_list<const char*> keys);
  // Names of the keys that were neither read nor ignored, with those of tables: "alt_mixer.foo".
  std::vector<std::string> unread() const;

 private:
  ConfigReader(const Json& json, std::string path, std::string prefix);
  const Json* find(const std::string& key);  // null if absent or null; notes that the key was read

  const Json* json_;
  std::string path_, prefix_;  // "alt_mixer." in a table
  std::set<std::string> read_;
  std::map<std::string, std::unique_ptr<ConfigReader>> tables_;
};

}  // namespace based::published

// Configurations. A Config is a tree of values that remembers the file and line of each value. A struct lists its fields once, in `visit`;
// defaults, help, parsing and printing follow from this list. A key that no field has is an error that names file, line and the nearest
// known key.
//
//   struct WindowConfig {
//     int64_t window = 64;
//     template <class Visitor> void visit(Visitor&& field) { field("window", window, "keys that a token attends to"); }
//   };
//   auto config = read_config<WindowConfig>(Config::parse_toml_file("run.toml"));
//
// Fields may be bool, int64_t, double, std::string, Config (any value, unparsed), std::map<std::string, Config>, another struct with
// `visit`, or a std::vector of any of these.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "based/core/error.h"

namespace based {

// The size limit of configuration files.
inline constexpr uint64_t kMaxConfigBytes = 16 << 20;

class Config {
 public:
  using Array = std::vector<Config>;
  using Table = std::vector<std::pair<std::string, Config>>;  // in the order of the file
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table>;

  Config() = default;  // null
  Config(Value value, std::string where = "");

  static Config parse_toml(std::string_view text, const std::string& file);  // throws UsageError with file:line
  static Config parse_toml_file(const std::string& path);                    // a regular file or a pipe
  static Config parse_json(std::string_view text, const std::string& file);  // throws Error with file and path of the key
  static Config parse_json_file(const std::string& path);                    // a regular file only
  std::string to_json(int indent = 2) const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_table() const { return std::holds_alternative<Table>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  const Value& value() const { return value_; }
  // "file:line: " or "file: a.b.c: ", the prefix of every message about this value.
  const std::string& where() const { return where_; }

  const Config* find(std::string_view key) const;       // null if the key is absent or this is not a table
  void set(std::string_view dotted_key, Config value);  // creates missing tables and replaces an existing value
  // For --set "train.steps=200". The value is parsed as TOML; if it is not valid TOML, it is a string.
  void override_with(const std::string& key_equals_value);

 private:
  Value value_;
  std::string where_;
};

// The closest of `known` by edit distance, or "" if none is close; for "unknown key 'stpes', did you mean 'steps'?".
std::string nearest(std::string_view word, const std::vector<std::string>& known);

struct FieldHelp {
  std::string name, type, default_value, help;
};

// A default-constructed T whose fields are overwritten by the keys of `config`. Throws UsageError for an unknown key or a wrong type.
template <class T>
T read_config(const Config& config);
// Returns read(), but turns a UsageError into an Error. For files that programs write (a model's config.json, a line of results): a mistake
// there is not wrong usage.
template <class Read>
auto read_stored(const Read& read) {
  try {
    return read();
  } catch (const UsageError& error) {
    throw Error(error.what());
  }
}
// All fields, defaults included, in the visitor's order.
template <class T>
Config write_config(const T& value);
// Names, types, defaults and help of the fields of T. Names of nested fields are dotted.
template <class T>
std::vector<FieldHelp> config_help();

}  // namespace based

#include "based/core/config_visitors.h"

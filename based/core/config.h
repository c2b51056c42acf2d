// Configurations: a tree of values that remembers the file and line it came from, and one visitor list a struct that gives defaults,
// help, parsing and printing. A key that no visitor names is an error that tells file, line and the nearest known key.
//
//   struct WindowConfig {
//     int64_t window = 64;
//     template <class Visitor> void visit(Visitor&& field) { field("window", window, "keys that a token sees, itself included"); }
//   };
//   auto config = read_config<WindowConfig>(Config::parse_toml_file("run.toml"));
//
// Fields may be bool, int64_t, double, std::string, Config (a table as it is), std::map<std::string, Config>, another visited struct, or a
// std::vector of any of these.
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

// What a file may have at most; no configuration is larger.
inline constexpr uint64_t kMaxConfigBytes = 16 << 20;

class Config {
 public:
  using Array = std::vector<Config>;
  using Table = std::vector<std::pair<std::string, Config>>;  // in the order written
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table>;

  Config() = default;  // null
  Config(Value value, std::string where = "");

  static Config parse_toml(std::string_view text, const std::string& file);  // throws UsageError with file:line
  static Config parse_toml_file(const std::string& path);                    // a pipe is read, too
  static Config parse_json(std::string_view text, const std::string& file);  // throws Error with file and path of the key
  static Config parse_json_file(const std::string& path);                    // a regular file
  std::string to_json(int indent = 2) const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_table() const { return std::holds_alternative<Table>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  const Value& value() const { return value_; }
  // "file:line: " or "file: a.b.c: "; the start of every message about this value.
  const std::string& where() const { return where_; }

  const Config* find(std::string_view key) const;       // null where absent or not a table
  void set(std::string_view dotted_key, Config value);  // makes tables on the way; replaces
  // "train.steps=200": the value is read as TOML, and as a string where it is no TOML value. For --set.
  void override_with(const std::string& key_equals_value);

 private:
  Value value_;
  std::string where_;
};

// The closest of `known` by edit distance, or "" where none is near; for "unknown key 'stpes', did you mean 'steps'?".
std::string nearest(std::string_view word, const std::vector<std::string>& known);

struct FieldHelp {
  std::string name, type, default_value, help;
};

// T as a default-constructed struct with the keys of `config` laid over it. Throws UsageError for an unknown key or a wrong type.
template <class T>
T read_config(const Config& config);
// What `read` gives, which reads what a program has written (a model's config.json, a line of results): what is wrong there is an Error,
// not wrong usage.
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
// Names, types, defaults and help of the fields of T, nested ones dotted.
template <class T>
std::vector<FieldHelp> config_help();

}  // namespace based

#include "based/core/config_visitors.h"

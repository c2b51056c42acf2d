// Reading of data sets in JSON. Every message names file, line and field: "dev.jsonl:17: 'passage.questions[2].label' must be an integer
// from 0 to 1, is "true"".
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/eval/task.h"

namespace based {

// A value of a data file, and its place. Refers to the tree that it was made of. All functions but has() throw Error.
class DataField {
 public:
  // `place` is "<file>:<line>", or "<file>" if the file is one JSON value.
  DataField(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  bool has(const std::string& key) const;      // false if this is no object
  DataField at(const std::string& key) const;  // a member of this object
  std::vector<DataField> items() const;        // the elements of this list
  const std::string& text() const;
  int64_t integer(int64_t least, int64_t most) const;
  bool boolean() const;
  std::vector<std::string> texts() const;  // this list of strings

  // The members of this object.
  const std::string& text(const std::string& key) const { return at(key).text(); }
  int64_t integer(const std::string& key, int64_t least, int64_t most) const { return at(key).integer(least, most); }
  std::vector<std::string> texts(const std::string& key) const { return at(key).texts(); }
  // The index of one of `count` choices: an integer, or its digits as text, as in some published files.
  int64_t index(const std::string& key, size_t count) const;
  bool truth() const;  // true or false, or the label 1 or 0, as in some published files

  const Json& value() const { return *value_; }
  const std::string& place() const { return place_; }
  [[noreturn]] void refuse(const std::string& wanted) const;  // "<place>: '<field>' must be <wanted>, is <value>"

 private:
  DataField child(const Json& value, std::string path) const;
  std::string name() const;  // for messages

  const Json* value_;
  std::string place_, path_;
};

// The path of a file of the unpacked data sets. Throws Error naming --data if the file is missing.
std::string data_file(const EvalTaskOptions& options, const std::string& name);

// Calls `visit` for each line of a JSON-lines file, numbered from 0 without empty lines. Throws Error for a file that cannot be read, for
// lines that are not JSON objects in UTF-8, and for a file without any.
void read_json_lines(const std::string& path, const std::function<void(const DataField& line, int64_t row)>& visit);
// Calls `visit` for the JSON value that a file consists of.
void read_json_file(const std::string& path, const std::function<void(const DataField& file)>& visit);

}  // namespace based

#include "based/eval/tasks/json_reader.h"

#include <string_view>
#include <utility>

#include "based/core/files.h"
#include "based/core/text.h"

namespace based {

bool DataField::has(const std::string& key) const { return value_->is_object() && value_->contains(key); }

DataField DataField::child(const Json& value, std::string path) const {
  DataField field(value, place_);
  field.path_ = std::move(path);
  return field;
}

DataField DataField::at(const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  const std::string path = path_.empty() ? key : path_ + "." + key;
  const auto found = value_->find(key);
  if (found == value_->end()) throw Error(place_ + ": " + in_quotes(path) + " is missing");
  return child(*found, path);
}

std::vector<DataField> DataField::items() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<DataField> fields;
  for (size_t i = 0; i < value_->size(); ++i) fields.push_back(child((*value_)[i], path_ + "[" + std::to_string(i) + "]"));
  return fields;
}

const std::string& DataField::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

int64_t DataField::integer(int64_t least, int64_t most) const {
  // A number above the largest int64_t is kept unsigned.
  const bool fits = value_->is_number_integer() && (!value_->is_number_unsigned() || value_->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits || value_->get<int64_t>() < least || value_->get<int64_t>() > most)
    refuse("an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return value_->get<int64_t>();
}

int64_t DataField::index(const std::string& key, size_t count) const {
  const DataField field = at(key);
  const int64_t most = static_cast<int64_t>(count) - 1;
  if (field.value().is_string()) {
    for (int64_t i = 0; i <= most; ++i)
      if (field.text() == std::to_string(i)) return i;
  }
  return field.integer(0, most);
}

bool DataField::truth() const {
  if (value_->is_number_integer()) return integer(0, 1) == 1;
  return boolean();
}

bool DataField::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::vector<std::string> DataField::texts() const {
  std::vector<std::string> strings;
  for (const DataField& item : items()) strings.push_back(item.text());
  return strings;
}

std::string DataField::name() const { return path_.empty() ? "the value" : in_quotes(path_); }

void DataField::refuse(const std::string& wanted) const {
  throw Error(place_ + ": " + name() + " must be " + wanted + ", is " + printable(dump_json(*value_)));
}

std::string data_file(const EvalTaskOptions& options, const std::string& name) {
  std::string path = path_in(options.data, name);
  if (!path_exists(path)) throw Error(path + ": there is no such file; --data must name the folder of the unpacked data sets");
  return path;
}

void read_json_lines(const std::string& path, const std::function<void(const DataField& line, int64_t row)>& visit) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  int64_t row = 0;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = path + ":" + std::to_string(number);
    const Json value = parse_json(line, place);
    const DataField field(value, place);
    if (!value.is_object()) field.refuse("an object");
    visit(field, row++);
  }
  if (row == 0) throw Error(path + ": there are no documents in this file");
}

void read_json_file(const std::string& path, const std::function<void(const DataField& file)>& visit) {
  const Json value = parse_json(read_file(path), path);
  visit(DataField(value, path));
}

}  // namespace based

// Hand-made pickles and files of torch.save for tests.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "based/core/zip.h"
#include "tests/core/temporary_folder.h"

namespace based::test {

inline std::string pickled_text(std::string_view text) {
  return "X" + std::string{static_cast<char>(text.size()), 0, 0, 0} + std::string(text);
}
inline std::string pickled_number(int32_t number) {
  std::string bytes = "J0000";
  std::memcpy(bytes.data() + 1, &number, sizeof number);
  return bytes;
}
inline std::string pickled_tuple(const std::vector<int32_t>& numbers) {
  std::string items = "(";
  for (const int32_t number : numbers) items += pickled_number(number);
  return items + "t";
}

struct PickledTensor {
  std::string storage = "FloatStorage", key = "0";
  int32_t elements = 6, offset = 0;
  std::vector<int32_t> shape = {2, 3}, strides = {3, 1};
  std::string metadata = {};  // a pickled value; "" for none

  std::string bytes() const {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled_text("storage") + "ctorch\n" + storage + "\n" + pickled_text(key) +
           pickled_text("cpu") + pickled_number(elements) + "tQ" + pickled_number(offset) + pickled_tuple(shape) + pickled_tuple(strides) +
           "\x89" + "ccollections\nOrderedDict\n)R" + metadata + "tR";
  }
};

inline std::string pickle_of(const std::string& body) { return "\x80\x02" + body + "."; }
inline std::string pickled_dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string body = "}(";
  for (const auto& [name, value] : entries) body += pickled_text(name) + value;
  return body + "u";
}

// A file of torch.save: the pickle, and the members data/<key>.
inline std::string torch_file_of(const std::string& pickle, const std::vector<std::pair<std::string, std::string>>& storages,
                                 const std::string& order = "little") {
  const TemporaryFolder folder;
  ZipWriter zip(folder.file("model.bin"));
  zip.add("m/data.pkl", pickle);
  zip.add("m/byteorder", order);
  for (const auto& [key, bytes] : storages) zip.add("m/data/" + key, bytes);
  zip.add("m/version", std::string_view("3\n"));
  zip.commit();
  return read_file(folder.file("model.bin"));
}

}  // namespace based::test

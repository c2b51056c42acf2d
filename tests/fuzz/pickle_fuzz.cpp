// Files of torch.save, hostile ones too. Nearly every mutation of an archive breaks its structure, so an input is also read as the bare
// pickle: first alone, then in an archive with storages of the sizes that it names.
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "based/core/pickle.h"
#include "based/core/torch_file.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

void check_file(std::span<const std::byte> file) {
  accept_or_refuse([&] {
    const TorchIndex index = parse_torch_file(file, "fuzz.bin", /*check_sums=*/false);
    size_t copied = 0;
    for (const auto& copy : index.dense) copied += copy.size();
    require(copied <= file.size(), "the copies are larger than the file");
    std::set<std::string> names;
    for (const TensorView& tensor : index.tensors) {
      require(names.insert(tensor.name).second, "a name occurs twice");
      require(tensor_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()), "shape and bytes disagree");
      require(tensor.bytes.size() <= file.size(), "a tensor is larger than the file");
    }
  });
}

void check_pickle(const Pickle& pickle) {
  require(pickle.root < pickle.values.size(), "there is no root");
  for (const PickleValue& value : pickle.values) {
    require(value.depth <= kMaxPickleDepth, "values are too deep");
    for (const uint32_t item : value.items) {
      require(item < pickle.values.size(), "an item is no value");
      require(pickle.values[item].depth < value.depth, "an item is as deep as its container");
    }
    if (value.kind == PickleKind::tensor) require(static_cast<size_t>(value.integer) < pickle.tensors.size(), "a tensor is none");
  }
  for (const PickleTensor& tensor : pickle.tensors) {
    require(tensor.storage < pickle.storages.size(), "a tensor has no storage");
    require(tensor.shape.size() == tensor.strides.size(), "shape and strides differ");
    require(tensor.offset >= 0 && tensor.offset <= pickle.storages[tensor.storage].elements, "a tensor begins outside its storage");
  }
}

// An archive of stored members, without checksums.
class MadeArchive {
 public:
  void add(const std::string& name, std::span<const std::byte> bytes) {
    std::string header;
    append(header, {20, 0, 0, 0, 0x21, 0, 0});  // version, flags, method, time, date, CRC
    for (int i = 0; i < 2; ++i) append(header, {static_cast<uint16_t>(bytes.size()), static_cast<uint16_t>(bytes.size() >> 16)});
    append(header, {static_cast<uint16_t>(name.size()), 0});
    const auto at = static_cast<uint32_t>(file_.size());
    file_ += "PK\x03\x04" + header + name + std::string(as_text(bytes));
    directory_ += "PK\x01\x02" + std::string("\x14\0", 2) + header + std::string(10, '\0');
    append(directory_, {static_cast<uint16_t>(at), static_cast<uint16_t>(at >> 16)});
    directory_ += name;
    ++members_;
  }
  std::string finished() const {
    std::string end = "PK\x05\x06";
    const auto directory = static_cast<uint32_t>(file_.size()), bytes = static_cast<uint32_t>(directory_.size());
    append(end, {0, 0, members_, members_, static_cast<uint16_t>(bytes), static_cast<uint16_t>(bytes >> 16),
                 static_cast<uint16_t>(directory), static_cast<uint16_t>(directory >> 16), 0});
    return file_ + directory_ + end;
  }

 private:
  static void append(std::string& text, std::initializer_list<uint16_t> numbers) {
    for (const uint16_t number : numbers) {
      text += static_cast<char>(number & 0xff);
      text += static_cast<char>(number >> 8);
    }
  }
  std::string file_, directory_;
  uint16_t members_ = 0;
};

// The archive that torch.save would write with this pickle, or "" if its storages are large. Bytes of members are zero.
std::string archive_of(std::span<const std::byte> bytes, const Pickle& pickle) {
  constexpr int64_t most = 4096;
  if (pickle.storages.size() > 64) return "";
  MadeArchive archive;
  archive.add("m/data.pkl", bytes);
  const std::vector<std::byte> zeros(static_cast<size_t>(most));
  for (const PickleStorage& storage : pickle.storages) {
    if (storage.elements > most / dtype_bytes(storage.dtype) || storage.key.size() > 1000) return "";
    archive.add("m/data/" + storage.key, std::span(zeros).first(static_cast<size_t>(storage.elements * dtype_bytes(storage.dtype))));
  }
  return archive.finished();
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  check_file(input);
  accept_or_refuse([&] {
    const Pickle pickle = parse_pickle(input, "fuzz.pkl");
    check_pickle(pickle);
    if (const std::string file = archive_of(input, pickle); !file.empty()) check_file(std::as_bytes(std::span(file)));
  });
}

}  // namespace based

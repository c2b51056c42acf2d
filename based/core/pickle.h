// The pickles of torch.save: a parser that executes nothing. It knows strings, numbers, containers and tensors; the only callables that it
// accepts are the constructors of these, which it interprets itself. A pickle is otherwise a program that can call any function of Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "based/core/dtype.h"

namespace based {

// A storage is an array of numbers outside the pickle; torch.save stores it as the member data/<key> of the archive.
struct PickleStorage {
  DType dtype = DType::F32;
  std::string key;
  std::string location;  // the device it was saved from: "cpu", "cuda:0"
  int64_t elements = 0;
};

// A view of a storage. No element of the storage occurs twice in it, and all of them are inside the storage.
struct PickleTensor {
  size_t storage = 0;  // index of Pickle::storages
  int64_t offset = 0;  // position of the first element in the storage, counted in elements
  std::vector<int64_t> shape, strides;
  const char* unresolved = nullptr;  // "neg" or "conj": the numbers of the storage are negated or conjugated when torch reads them
};

enum class PickleKind : uint8_t { none, boolean, integer, real, text, bytes, list, tuple, dict, tensor, storage, callable };
const char* pickle_kind_name(PickleKind kind);  // with its article: "an integer", "None"

struct PickleValue {
  PickleKind kind = PickleKind::none;
  uint8_t depth = 0;     // 0 for a value without items, otherwise one more than its deepest item
  bool is_item = false;  // an item of another value; nothing is added to it any more, so that values form no cycle
  int64_t integer = 0;   // a boolean, an integer, an index of Pickle::tensors or Pickle::storages, or a callable
  double real = 0;
  std::string text;             // the content, if the kind is text or bytes
  std::vector<uint32_t> items;  // indices of Pickle::values; in a dict key, value, key, value, …
};

struct Pickle {
  std::vector<PickleValue> values;
  std::vector<PickleTensor> tensors;
  std::vector<PickleStorage> storages;  // by key each once
  uint32_t root = 0;                    // index of `values`
};

inline constexpr size_t kMaxPickleBytes = size_t{64} << 20;
inline constexpr size_t kMaxPickleValues = size_t{1} << 20;  // also the bound of the stack and of the memo
inline constexpr int kMaxPickleDepth = 32;

// Throws Error "<source>: offset <base + position>: <opcode>: <reason>" for opcodes and callables that it does not know, damaged or
// oversized input, deep nesting, and tensors that leave their storage or use an element twice. `base`: the offset of the pickle in the
// file.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& source, uint64_t base = 0);

}  // namespace based

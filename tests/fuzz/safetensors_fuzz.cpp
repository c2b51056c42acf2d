// safetensors: an accepted tensor has the size of its type and shape, and is inside the file. Nearly every mutation of the header makes its
// length wrong, so the target also corrects the length and thereby reaches the parser.
#include <cstring>
#include <vector>

#include "based/core/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

void check(std::span<const std::byte> file) {
  accept_or_refuse([&] {
    size_t total = 0;
    for (const TensorView& tensor : parse_safetensors(file, "fuzz.safetensors").tensors) {
      const std::byte *begin = tensor.bytes.data(), *end = begin + tensor.bytes.size();
      require(tensor.bytes.empty() || (begin >= file.data() && end <= file.data() + file.size()), "a tensor lies outside the file");
      require(tensor_bytes(tensor.dtype, tensor.shape) == static_cast<int64_t>(tensor.bytes.size()), "shape and bytes disagree");
      total += tensor.bytes.size();
      first_not_finite(tensor);
    }
    require(total <= file.size(), "tensors overlap");
  });
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  check(input);
  if (input.size() < sizeof(uint64_t)) return;
  std::vector<std::byte> mended(input.begin(), input.end());
  const size_t last_brace = as_text(input).rfind('}');
  const uint64_t length = last_brace == std::string_view::npos || last_brace < 8 ? 0 : last_brace - 7;
  std::memcpy(mended.data(), &length, sizeof(length));
  check(mended);
}

}  // namespace based

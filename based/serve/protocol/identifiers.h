// Random identifiers, and the time that replies and stored states give as `created`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace based {

// `size` bytes from the operating system's generator. Throws Error if it fails.
std::string random_bytes(size_t size);
std::string random_hex(size_t bytes);  // as lower-case hexadecimal digits

int64_t unix_seconds();  // since 1970

}  // namespace based

#include "based/serve/protocol/identifiers.h"

#include <openssl/rand.h>

#include <chrono>

#include "based/core/error.h"
#include "based/core/text.h"

namespace based {

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) != 1)
    throw Error("the operating system gives no random numbers");
  return bytes;
}

std::string random_hex(size_t bytes) { return hex_digits(random_bytes(bytes)); }

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace based

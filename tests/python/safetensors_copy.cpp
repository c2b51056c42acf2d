// Our side of interop.py: reads every safetensors file named and writes it again as <file>.copy; prints a line for each, "ok" or the
// refusal.
#include <cstdio>

#include "based/core/safetensors.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    try {
      const based::SafetensorsFile file(path);
      based::write_safetensors(path + ".copy", file.tensors(), file.metadata());
      std::puts("ok");
    } catch (const based::Error& error) {
      std::puts(error.what());
    }
  }
  return 0;
}

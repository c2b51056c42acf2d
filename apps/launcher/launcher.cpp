// The program /usr/bin/based of the Debian package. It finds the LibTorch that the user has chosen, and replaces itself by the program
// proper, which the dynamic loader could not start without LibTorch. It uses no LibTorch and no other library of the project.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr const char* kLink = "/etc/based/libtorch";         // the system's choice: a link to LibTorch's folder of libraries
constexpr const char* kVersion = BASED_LIBTORCH_VERSION;     // the build had this version, and others have another ABI
constexpr const char* kProgram = "/../libexec/based/based";  // from this program's folder

// Prints the message with its control characters replaced, since it may quote a path from the environment.
[[noreturn]] void fail(const std::string& text) {
  std::string shown = "based: ";
  for (const char letter : text) shown += static_cast<unsigned char>(letter) < 0x20 && letter != '\n' ? '?' : letter;
  std::fprintf(stderr, "%s\n", shown.c_str());
  std::exit(1);
}

const std::string& remedy() {
  static const std::string text = std::string("Install LibTorch ") + kVersion +
                                  ", for example by\n  python3 -m venv /opt/torch && /opt/torch/bin/pip install torch==" + kVersion +
                                  "\nand name its folder of libraries in BASED_LIBTORCH, or for all users by a link:\n"
                                  "  ln -s /opt/torch/lib/python3*/site-packages/torch/lib " +
                                  kLink + "\nMore is in /usr/share/doc/based/packages.md.";
  return text;
}

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

// The folder of libraries in `folder`, which is that folder or LibTorch's: lib/ of the zip file or of the wheel's package.
std::optional<std::string> libraries_in(const std::string& folder) {
  for (const char* below : {"", "/lib"})
    if (exists(folder + below + "/libtorch_cpu.so")) return folder + below;
  return std::nullopt;
}

// "2.11.0" from the headers beside the libraries; empty if there are none, as where the libraries alone were copied.
std::string version_of(const std::string& libraries) {
  std::ifstream header(libraries + "/../include/torch/headeronly/version.h");
  std::string version;
  for (std::string line; std::getline(header, line);) {
    std::istringstream words(line);
    std::string define, name, value;
    words >> define >> name >> value;
    for (const char* part : {"MAJOR", "MINOR", "PATCH"})
      if (define == "#define" && name == std::string("TORCH_VERSION_") + part) version += (version.empty() ? "" : ".") + value;
  }
  return version;
}

// The folder of python3's torch; empty if there is none. torch itself is not imported.
std::string python_torch() {
  std::FILE* pipe = popen(
      "python3 -c 'import importlib.util as u; s = u.find_spec(\"torch\"); print(s.submodule_search_locations[0] if s else \"\", "
      "end=\"\")' "
      "2>/dev/null </dev/null",
      "re");
  std::string folder;
  if (pipe == nullptr) return folder;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) folder.append(buffer.data(), n);
  return pclose(pipe) == 0 ? folder : "";
}

std::vector<std::string> folders_of(const char* list) {
  std::vector<std::string> folders;
  std::istringstream text(list == nullptr ? "" : list);
  for (std::string folder; std::getline(text, folder, ':');)
    if (!folder.empty()) folders.push_back(folder);
  return folders;
}

// The libraries in the first of these places: BASED_LIBTORCH, which must have them; LD_LIBRARY_PATH; the link; python3's torch.
std::string find_libraries() {
  const auto checked = [](const std::string& libraries, const std::string& place) {
    if (const std::string version = version_of(libraries); !version.empty() && version != kVersion)
      fail("LibTorch in " + libraries + " (" + place + ") has version " + version + "; this program needs " + kVersion + ".\n" + remedy());
    // Links are resolved here, because LibTorch finds further libraries from its own folder.
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(libraries.c_str(), nullptr), std::free);
    return real ? std::string(real.get()) : libraries;
  };
  if (const char* named = std::getenv("BASED_LIBTORCH"); named != nullptr && *named != '\0') {
    if (const auto found = libraries_in(named)) return checked(*found, "BASED_LIBTORCH");
    fail(std::string("BASED_LIBTORCH is ") + named + ", where no LibTorch is: neither it nor its folder lib has libtorch_cpu.so.\n" +
         remedy());
  }
  for (const std::string& folder : folders_of(std::getenv("LD_LIBRARY_PATH")))
    if (exists(folder + "/libtorch_cpu.so")) return checked(folder, "LD_LIBRARY_PATH");
  if (const auto found = libraries_in(kLink)) return checked(*found, kLink);
  if (const std::string folder = python_torch(); !folder.empty())
    if (const auto found = libraries_in(folder)) return checked(*found, "python3's torch");
  fail(std::string("LibTorch was not found in BASED_LIBTORCH, LD_LIBRARY_PATH, ") + kLink + " or python3's torch.\n" + remedy());
}

std::string own_folder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) fail(std::string("/proc/self/exe cannot be read: ") + std::strerror(errno));
  const std::string own(path.data(), static_cast<size_t>(length));
  return own.substr(0, own.rfind('/'));
}

}  // namespace

int main(int, char** argv) {
  const std::string libraries = find_libraries();
  std::string path = libraries;
  for (const std::string& folder : folders_of(std::getenv("LD_LIBRARY_PATH"))) path += ":" + folder;
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  const std::string program = own_folder() + kProgram;
  execv(program.c_str(), argv);
  fail(program + " cannot be started: " + std::strerror(errno) + "; install the package again");
}

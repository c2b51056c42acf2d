// Tables of launchers. A family's header declares a struct of function pointers, which is the same on every device; the family's files in
// cpu/ and cuda/ define one value of it each. A caller that has a Queue or a Device asks for the table of that device.
//
//   struct FooLaunchers {                                   // foo.h
//     Status (*forward)(const Foo&, Queue);
//   };
//   const DefineLaunchers<FooLaunchers> kFooLaunchers(Device::cpu, {on_cpu<cpu::foo_forward>});  // cpu/foo.cpp
//   const DefineLaunchers<FooLaunchers> kLaunchers(Device::cuda, {cuda::foo_forward});           // cuda/foo.cu
//   launchers<FooLaunchers>(queue.device)->forward(foo, queue);
#pragma once
#include "based/kernels/common/kernel.h"

namespace based::kernels {

template <class Table>
inline const Table* launcher_tables[2] = {};  // by Device; filled while the program starts

// Null where the program has no kernels of this family for the device.
template <class Table>
const Table* launchers(Device device) {
  return launcher_tables<Table>[static_cast<size_t>(device)];
}

// Defines a device's table, at namespace scope.
template <class Table>
class DefineLaunchers {
 public:
  DefineLaunchers(Device device, const Table& table) : table_(table) { launcher_tables<Table>[static_cast<size_t>(device)] = &table_; }
  DefineLaunchers(const DefineLaunchers&) = delete;
  DefineLaunchers& operator=(const DefineLaunchers&) = delete;

 private:
  const Table table_;
};

namespace detail {
template <auto kLauncher, class Function = decltype(kLauncher)>
struct OnCpu;
template <auto kLauncher, class... Arguments>
struct OnCpu<kLauncher, Status (*)(Arguments...)> {
  static Status launch(Arguments... arguments, Queue) { return kLauncher(arguments...); }
};
}  // namespace detail

// A launcher of the CPU, which takes no queue, as an entry of a table.
template <auto kLauncher>
inline constexpr auto on_cpu = &detail::OnCpu<kLauncher>::launch;

}  // namespace based::kernels

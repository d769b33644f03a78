// Blocks of threads one after the other, the threads of a block side by side.
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
struct uint3 { unsigned x, y, z; };
typedef void (*Kernel)(void**, int*, uint3, uint3);
static std::unique_ptr<std::barrier<>> all, group[32];
static thread_local int own;
static float left[32][8][8], right[32][8][8];

extern "C" void block_barrier() { if (all) all->arrive_and_wait(); }

// Lanes as Apple's GPUs have them: bits 0 and 3 say which pair of columns, bits 1, 2 and 4 which row.
extern "C" void simd_step(float* c, const float* a, const float* b) {
  int g = own / 32, lane = own % 32;
  int row = (lane >> 1 & 3) + (lane >> 4) * 4, column = (lane & 1) * 2 + (lane >> 3 & 1) * 4;
  for (int i = 0; i < 2; i++) left[g][row][column + i] = a[i], right[g][row][column + i] = b[i];
  group[g]->arrive_and_wait();
  for (int i = 0; i < 2; i++) for (int k = 0; k < 8; k++) c[i] += left[g][row][k] * right[g][k][column + i];
  group[g]->arrive_and_wait(); }

extern "C" void launch(Kernel kernel, void** buffers, int* values, const unsigned* grid, const unsigned* block) {
  unsigned count = block[0] * block[1] * block[2];
  all = count > 1 ? std::make_unique<std::barrier<>>(count) : nullptr;
  for (unsigned g = 0; g < (count + 31) / 32; g++)
    group[g] = std::make_unique<std::barrier<>>(count - g * 32 < 32 ? count - g * 32 : 32);
  for (unsigned z = 0; z < grid[2]; z++) for (unsigned y = 0; y < grid[1]; y++) for (unsigned x = 0; x < grid[0]; x++) {
    auto one = [=](unsigned t) {
      own = t;
      kernel(buffers, values, {x, y, z}, {t % block[0], t / block[0] % block[1], t / (block[0] * block[1])}); };
    if (count == 1) { one(0); continue; }
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; t++) threads.emplace_back(one, t);
    for (auto& t : threads) t.join(); } }

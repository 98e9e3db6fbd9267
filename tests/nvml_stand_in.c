/* Stands in for the driver's libnvidia-ml.so.1: two cards of a constant power each.
 * NVML_STAND_IN holds words that each switch one defect on. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NO_DRIVER = 9, LOST = 15, MISMATCH = 18 };
static long cards[2] = {0, 1};
static int power_calls[2];

static int has(const char *word) {
    const char *words = getenv("NVML_STAND_IN");
    return words && strstr(words, word) != NULL;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static unsigned milliwatts(long card) { return card ? 200000 : 100000; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (has("no-driver")) return NO_DRIVER;
    if (has("mismatch")) return MISMATCH;
    if (has("init-permission")) return NO_PERMISSION;
    return OK;
}
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = has("no-card") ? 0 : 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = &cards[index]; return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    *card = &cards[uuid[strlen(uuid) - 1] == '1'];
    return OK;
}
int nvmlDeviceGetIndex(long *card, unsigned *index) { *index = *card; return OK; }
int nvmlDeviceGetPowerUsage(long *card, unsigned *mw) {
    if (has("lost") && *card == 1 && ++power_calls[1] > 2) return LOST;
    if (has("power-permission")) return NO_PERMISSION;
    *mw = milliwatts(*card);
    return OK;
}
#ifndef WITHOUT_COUNTER
int nvmlDeviceGetTotalEnergyConsumption(long *card, unsigned long long *mj) {
    if (has("no-counter")) return NOT_SUPPORTED;
    double drift = has("drift") ? 0.8 : 1.0;
    *mj = (unsigned long long)(drift * milliwatts(*card) * now());
    return OK;
}
#endif
int nvmlDeviceGetClockInfo(long *card, int kind, unsigned *mhz) {
    (void)card;
    *mhz = kind == 1 ? 2520 : 10501;
    return OK;
}
int nvmlDeviceGetTemperature(long *card, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 50 + *card;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(long *card, unsigned *mw) { (void)card; *mw = 450000; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(long *card, unsigned long long *bits) {
    (void)card;
    *bits = 4;
    return OK;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "575.51", size); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12090; return OK; }
int nvmlDeviceGetName(long *card, char *text, unsigned size) {
    (void)card;
    strncpy(text, "NVIDIA GeForce RTX 4090", size);
    return OK;
}
int nvmlDeviceGetMaxPcieLinkGeneration(long *card, unsigned *gen) { (void)card; *gen = 4; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(long *card, unsigned *width) { (void)card; *width = 16; return OK; }
int nvmlDeviceGetP2PStatus(long *one, long *other, int index, int *status) {
    (void)one, (void)other, (void)index;
    *status = 3; /* disabled by the driver */
    return OK;
}

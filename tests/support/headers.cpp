// A program for the sake of the headers that are precompiled with its options.
int main() {}
